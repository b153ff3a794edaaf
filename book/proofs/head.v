(** * A single head (chapter 4)

    Any scale, any bias, any mask; n_q queries and n_k keys; d_k and d_v may differ. *)

From attnbook Require Export softmax.

Definition scores {n_q n_k d_k} (scale : R) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (B : tensor [n_q; n_k])
  : tensor [n_q; n_k] := scale • (Q × K^T) ⊕ B.
Definition weights {n_q n_k d_k} (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (B : tensor [n_q; n_k])
  : tensor [n_q; n_k] := softmax M (scores scale Q K B).
Definition attention {n_q n_k d_k d_v} (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) : tensor [n_q; d_v] := weights M scale Q K B × V.

Section moving.
  Context {n_q n_k d_k d_v : nat} (M : mask).
  Context (c : R -> R) (q : R -> tensor [n_q; d_k]) (k : R -> tensor [n_k; d_k]) (v : R -> tensor [n_k; d_v]).
  Context (b : R -> tensor [n_q; n_k]) (t tc : R) (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k]).
  Context (tV : tensor [n_k; d_v]) (tB : tensor [n_q; n_k]).
  Hypothesis (Hc : is_derive c t tc) (HQ : moves q t tQ) (HK : moves k t tK) (HV : moves v t tV) (HB : moves b t tB).

  Let P := weights M (c t) (q t) (k t) (b t).
  Definition tscores : tensor [n_q; n_k] :=
    tc • (q t × (k t)^T) ⊕ c t • (tQ × (k t)^T) ⊕ c t • (q t × tK^T) ⊕ tB.

  Lemma scores_moves : moves (s := [n_q; n_k]) (fun u => scores (c u) (q u) (k u) (b u)) t tscores.
  Proof.
    intros i Hi j Hj. unfold scores, tscores, scaled, add.
    apply (derive_plus (fun u => c u * (q u × (k u)^T) i j) (fun u => b u i j)); [|now apply HB].
    eapply derive_eq.
    - apply (derive_mult c (fun u => (q u × (k u)^T) i j)); [exact Hc|].
      apply (matmul_moves q (fun u => (k u)^T)); [exact HQ|apply transpose_moves; exact HK|exact Hi|exact Hj].
    - unfold add. ring.
  Qed.

  Lemma weights_moves : moves (s := [n_q; n_k]) (fun u => weights M (c u) (q u) (k u) (b u)) t (centered P tscores).
  Proof. exact (softmax_moves M (fun u => scores (c u) (q u) (k u) (b u)) t _ scores_moves). Qed.

  Lemma attention_moves :
    moves (s := [n_q; d_v]) (fun u => attention M (c u) (q u) (k u) (v u) (b u)) t (centered P tscores × v t ⊕ P × tV).
  Proof. exact (matmul_moves (fun u => weights M (c u) (q u) (k u) (b u)) v t _ _ weights_moves HV). Qed.

  Lemma scores_adjoint (dS : tensor [n_q; n_k]) :
    ⟨dS, tscores⟩ = ⟨dS, q t × (k t)^T⟩ * tc + ⟨c t • (dS × k t), tQ⟩ + ⟨c t • (dS^T × q t), tK⟩ + ⟨dS, tB⟩.
  Proof.
    unfold tscores. rewrite !dot_add_r, !dot_scaled_r, !dot_scaled_l.
    rewrite (dot_matmul_r dS tQ), (dot_matmul_l dS (q t) (tK^T)), dot_transpose.
    replace ⟨dS × ((k t)^T)^T, tQ⟩ with ⟨dS × k t, tQ⟩ by reflexivity.
    replace ⟨((q t)^T × dS)^T, tK⟩ with ⟨dS^T × q t, tK⟩; [ring|].
    apply dot_ext; [|apply equal_refl].
    intros i _ j _. unfold matmul, transpose. simpl. apply sum_ext; intros. ring.
  Qed.

  (** All five inputs move at once: the loss changes by five inner products. *)
  Lemma attention_derive (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
    gradient ℓ (attention M (c t) (q t) (k t) (v t) (b t)) dO ->
    let dS := centered P (dO × (v t)^T) in
    is_derive (fun u => ℓ (attention M (c u) (q u) (k u) (v u) (b u))) t
      (⟨dS, q t × (k t)^T⟩ * tc + ⟨c t • (dS × k t), tQ⟩ + ⟨c t • (dS^T × q t), tK⟩ + ⟨dS, tB⟩ + ⟨P^T × dO, tV⟩).
  Proof.
    intros Hℓ dS. eapply derive_eq.
    - apply (Hℓ (fun u => attention M (c u) (q u) (k u) (v u) (b u))); [reflexivity|apply attention_moves].
    - rewrite dot_add_r, (dot_matmul_r dO), dot_matmul_l, centered_adjoint. fold dS. rewrite scores_adjoint.
      reflexivity.
  Qed.
End moving.

Section of_one_input.
  Context {n_q n_k d_k d_v : nat} (M : mask) (scale : R) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]).
  Context (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]).
  Let P := weights M scale Q K B.
  Let dS := centered P (dO × V^T).
  Hypothesis Hℓ : gradient ℓ (attention M scale Q K V B) dO.

  Ltac one := rewrite !dot_zero; ring.

  Lemma gradient_Q : gradient (fun Q => ℓ (attention M scale Q K V B)) Q (scale • (dS × K)).
  Proof.
    intros x t tX Hx Ht.
    refine (derive_eq _ _ _ _ (attention_derive M (fun _ => scale) x (fun _ => K) (fun _ => V) (fun _ => B)
      t 0 tX zero zero zero
      (derive_const _ _) Ht (moves_const _ _) (moves_const _ _) (moves_const _ _) ℓ dO _) _);
    [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. one.
  Qed.

  Lemma gradient_K : gradient (fun K => ℓ (attention M scale Q K V B)) K (scale • (dS^T × Q)).
  Proof.
    intros x t tX Hx Ht.
    refine (derive_eq _ _ _ _ (attention_derive M (fun _ => scale) (fun _ => Q) x (fun _ => V) (fun _ => B)
      t 0 zero tX zero zero
      (derive_const _ _) (moves_const _ _) Ht (moves_const _ _) (moves_const _ _) ℓ dO _) _);
    [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. one.
  Qed.

  Lemma gradient_V : gradient (fun V => ℓ (attention M scale Q K V B)) V (P^T × dO).
  Proof.
    intros x t tX Hx Ht.
    refine (derive_eq _ _ _ _ (attention_derive M (fun _ => scale) (fun _ => Q) (fun _ => K) x (fun _ => B)
      t 0 zero zero tX zero
      (derive_const _ _) (moves_const _ _) (moves_const _ _) Ht (moves_const _ _) ℓ dO _) _);
    [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. one.
  Qed.

  Lemma gradient_B : gradient (fun B => ℓ (attention M scale Q K V B)) B dS.
  Proof.
    intros x t tX Hx Ht.
    refine (derive_eq _ _ _ _ (attention_derive M (fun _ => scale) (fun _ => Q) (fun _ => K) (fun _ => V) x
      t 0 zero zero zero tX
      (derive_const _ _) (moves_const _ _) (moves_const _ _) (moves_const _ _) Ht ℓ dO _) _);
    [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. one.
  Qed.

  Lemma gradient_scale : gradient (s := []) (fun scale => ℓ (attention M scale Q K V B)) scale ⟨dS, Q × K^T⟩.
  Proof.
    intros x t tX Hx Ht.
    refine (derive_eq _ _ _ _ (attention_derive M x (fun _ => Q) (fun _ => K) (fun _ => V) (fun _ => B)
      t tX zero zero zero zero
      Ht (moves_const _ _) (moves_const _ _) (moves_const _ _) (moves_const _ _) ℓ dO _) _);
    [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. rewrite !dot_zero. simpl. ring.
  Qed.
End of_one_input.

(** ** The chapter's theorems *)

(** Output to values and weights: a factor crosses the inner product transposed. *)
Theorem step_output n_q n_k d_v (P tP : tensor [n_q; n_k]) (V tV : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) :
  ⟨dO, P × tV⟩ + ⟨dO, tP × V⟩ = ⟨P^T × dO, tV⟩ + ⟨dO × V^T, tP⟩.
Proof. now rewrite (dot_matmul_l dO P), (dot_matmul_r dO tP). Qed.

(** Scores to queries and keys: a factor crosses the inner product, and in the second term both sides are transposed at
    the end. *)
Theorem step_scores n_q n_k d_k scale (Q tQ : tensor [n_q; d_k]) (K tK : tensor [n_k; d_k]) (dS : tensor [n_q; n_k]) :
  ⟨dS, scale • (tQ × K^T ⊕ Q × tK^T)⟩ = ⟨scale • (dS × K), tQ⟩ + ⟨scale • (dS^T × Q), tK⟩.
Proof.
  pose proof (scores_adjoint (fun _ => scale) (fun _ => Q) (fun _ => K) 0 0 tQ tK zero dS) as H. cbv beta in H.
  rewrite dot_zero, Rmult_0_r, Rplus_0_l, Rplus_0_r in H. rewrite <- H. apply dot_ext; [apply equal_refl|].
  intros i _ j _. unfold tscores, add, scaled. simpl. ring.
Qed.

(** dV = Pᵀ dO: each value collects the gradients of the outputs it went into, by its weights. *)
Theorem eq_dV n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun V => ℓ (attention M scale Q K V B)) V (P^T × dO).
Proof. intros P H. exact (gradient_V M scale Q K V B ℓ dO H). Qed.

(** dP = dO Vᵀ: what one more share of a key is worth is how well its value points along dO. *)
Theorem eq_dP n_q n_k d_v (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  gradient ℓ (P × V) dO -> gradient (fun P => ℓ (P × V)) P (dO × V^T).
Proof. intro H. exact (proj1 (eq_matmul_vjp _ _ _ P V ℓ dO H)). Qed.

(** From the output back to the scores: dS = P (dP − the row's average of dP), with dP = dO Vᵀ. *)
Theorem eq_dS n_q n_k d_v (M : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let P := softmax M S in
  let dP := dO × V^T in
  gradient ℓ (P × V) dO ->
  gradient (fun S => ℓ (softmax M S × V)) S (fun i j => P i j * (dP i j - rowsum (dP ∘ P) i)).
Proof.
  intros P dP H. apply (gradient_ext _ _ (centered P dP)).
  - intros i _ j _. unfold centered, rowsum, hadamard. simpl. f_equal. f_equal. apply sum_ext; intros. ring.
  - apply (eq_softmax_vjp n_q n_k M S (fun P => ℓ (P × V)) dP). exact (eq_dP _ _ _ P V ℓ dO H).
Qed.

(** dQ = scale · dS K, from the output of the head back to its queries. *)
Theorem eq_dQ n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q (scale • (dS × K)).
Proof. intros P dP dS H. exact (gradient_Q M scale Q K V B ℓ dO H). Qed.

(** dK = scale · dSᵀ Q: each key collects from all queries that looked at it. *)
Theorem eq_dK n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun K => ℓ (attention M scale Q K V B)) K (scale • (dS^T × Q)).
Proof. intros P dP dS H. exact (gradient_K M scale Q K V B ℓ dO H). Qed.

(** ** What an input gets, from the scores on *)

(** Whatever the loss does with the scores: what their gradient dS gives to the query, the key, the bias, the scale. *)
Lemma scores_backward {n_q n_k d_k} scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (B : tensor [n_q; n_k]) ℓ dS :
  gradient ℓ (scores scale Q K B) dS ->
  gradient (fun Q => ℓ (scores scale Q K B)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (scores scale Q K B)) K (scale • (dS^T × Q)) /\
  gradient (fun B => ℓ (scores scale Q K B)) B dS /\
  gradient (s := []) (fun scale => ℓ (scores scale Q K B)) scale ⟨dS, Q × K^T⟩.
Proof.
  intro H. split; [|split; [|split]]; intros x t tx Hx Ht.
  - eapply derive_eq; [apply (H (fun u => scores scale (x u) K B)); [now rewrite Hx|]|].
    + exact (scores_moves (fun _ => scale) x (fun _ => K) (fun _ => B) t 0 tx zero zero
        (derive_const _ _) Ht (moves_const _ _) (moves_const _ _)).
    + rewrite (scores_adjoint (fun _ => scale) x (fun _ => K) t), !dot_zero. ring.
  - eapply derive_eq; [apply (H (fun u => scores scale Q (x u) B)); [now rewrite Hx|]|].
    + exact (scores_moves (fun _ => scale) (fun _ => Q) x (fun _ => B) t 0 zero tx zero
        (derive_const _ _) (moves_const _ _) Ht (moves_const _ _)).
    + rewrite (scores_adjoint (fun _ => scale) (fun _ => Q) x t), !dot_zero. ring.
  - eapply derive_eq; [apply (H (fun u => scores scale Q K (x u))); [now rewrite Hx|]|].
    + exact (scores_moves (fun _ => scale) (fun _ => Q) (fun _ => K) x t 0 zero zero tx
        (derive_const _ _) (moves_const _ _) (moves_const _ _) Ht).
    + rewrite (scores_adjoint (fun _ => scale) (fun _ => Q) (fun _ => K) t), !dot_zero. ring.
  - eapply derive_eq; [apply (H (fun u => scores (x u) Q K B)); [now rewrite Hx|]|].
    + exact (scores_moves x (fun _ => Q) (fun _ => K) (fun _ => B) t tx zero zero zero
        Ht (moves_const _ _) (moves_const _ _) (moves_const _ _)).
    + rewrite (scores_adjoint x (fun _ => Q) (fun _ => K) t), !dot_zero. simpl. ring.
Qed.

Lemma centered_dead {m n} M (S X : tensor [m; n]) i j : ~ live M n i -> (j < n)%nat -> centered (softmax M S) X i j = 0.
Proof. intros H Hj. unfold centered. rewrite softmax_dead by assumption. ring. Qed.

Lemma average_of_products {n_q n_k d_v} (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) i :
  ∑ j < n_k, P i j * (dO × V^T) i j = ∑ l < d_v, dO i l * (P × V) i l.
Proof.
  unfold matmul, transpose.
  transitivity (∑ j < n_k, ∑ l < d_v, dO i l * (P i j * V j l)).
  { apply sum_ext; intros j _. rewrite sum_l. apply sum_ext; intros. ring. }
  rewrite sum_swap. apply sum_ext; intros l _. now rewrite sum_l.
Qed.

(** One row of dO meets values that are moved by the output: dO · (V_j − O_i). *)
Lemma dP_less_D {n_q n_k d_v} (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) i j :
  (dO × V^T) i j - ∑ k < n_k, P i k * (dO × V^T) i k = ∑ a < d_v, dO i a * (V j a - (P × V) i a).
Proof.
  rewrite average_of_products. unfold matmul at 1. unfold transpose. rewrite <- sum_minus.
  apply sum_ext; intros. ring.
Qed.

(** D can be had without the weights: the row's average of dP is the product of the row's dO and O. *)
Theorem eq_D n_q n_k d_v (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) :
  let O := P × V in
  let dP := dO × V^T in
  forall i, ∑ j < n_k, P i j * dP i j = ∑ l < d_v, dO i l * O i l.
Proof. intros O dP i. apply average_of_products. Qed.

(** dS = P (dP − D), with D from the output and its gradient alone. *)
Theorem eq_dS_D n_q n_k d_v (M : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let P := softmax M S in
  let O := P × V in
  let dP := dO × V^T in
  let D := fun i => ∑ l < d_v, dO i l * O i l in
  gradient ℓ O dO ->
  gradient (fun S => ℓ (softmax M S × V)) S (fun i j => P i j * (dP i j - D i)).
Proof.
  intros P O dP D H. apply (gradient_ext _ _ (centered P dP)).
  - intros i _ j _. simpl. unfold centered, D, O, dP. now rewrite average_of_products.
  - apply (eq_softmax_vjp n_q n_k M S (fun P => ℓ (P × V)) dP). exact (eq_dP _ _ _ P V ℓ dO H).
Qed.

(** For one number of Q, with sums alone. Let dP and dS be the gradients of the weights and of the scores, S_Q the partial
    derivatives of the scores by the queries, P_S those of the weights by the scores. Line a is the gradient of Q, and
    each line is the same number as the next. *)
Theorem eq_dQ_chain n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v])
    (dP dS : tensor [n_q; n_k]) (S_Q P_S : nat -> nat -> nat -> R) :
  let S := scores scale Q K B in
  let P := softmax M S in
  let O := P × V in
  let D := fun i => ∑ k < n_k, P i k * dP i k in
  let a := fun i l => ∑ j < n_k, dS i j * S_Q i j l in
  let b := fun i l => scale * ∑ j < n_k, dS i j * K j l in
  let c := fun i l => scale * ∑ j < n_k, ∑ k < n_k, dP i k * P_S i k j * K j l in
  let d := fun i l => scale * ∑ j < n_k, ∑ k < n_k, dP i k * (P i k * (δ k j - P i j)) * K j l in
  let e := fun i l => scale * ∑ j < n_k, P i j * (dP i j - D i) * K j l in
  let f := fun i l => scale * ∑ j < n_k, P i j * (∑ x < d_v, dO i x * (V j x - O i x)) * K j l in
  gradient ℓ O dO -> gradient (fun P => ℓ (P × V)) P dP -> gradient (fun S => ℓ (softmax M S × V)) S dS ->
  (forall i j l, (i < n_q)%nat -> (j < n_k)%nat -> (l < d_k)%nat ->
    is_derive (fun u => scores scale (along (s := [n_q; d_k]) Q u (unit i l)) K B i j) 0 (S_Q i j l)) ->
  (forall i k j, (i < n_q)%nat -> (k < n_k)%nat -> (j < n_k)%nat ->
    is_derive (fun u => softmax M (along (s := [n_q; n_k]) S u (unit i j)) i k) 0 (P_S i k j)) ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q a /\
  forall i l, (i < n_q)%nat -> (l < d_k)%nat ->
    a i l = b i l /\ b i l = c i l /\ c i l = d i l /\ d i l = e i l /\ e i l = f i l.
Proof.
  intros S P O D a b c d e f H HP HS HSQ HPS.
  assert (EP : forall i j, (i < n_q)%nat -> (j < n_k)%nat -> dP i j = (dO × V^T) i j)
    by (intros i j Hi Hj; exact (gradient_entries _ _ _ _ i j HP (eq_dP n_q n_k d_v P V ℓ dO H) Hi Hj)).
  pose proof (step_softmax_chain n_q n_k M S (fun P => ℓ (P × V)) dP (fun i k j => P_S i k j) HPS HP) as [HG HJ].
  assert (ES : forall i j, (i < n_q)%nat -> (j < n_k)%nat -> dS i j = ∑ k < n_k, dP i k * P_S i k j)
    by (intros i j Hi Hj; exact (gradient_entries _ _ _ _ i j HS HG Hi Hj)).
  assert (Hab : forall i l, (i < n_q)%nat -> (l < d_k)%nat -> a i l = b i l).
  { intros i l Hi Hl. unfold a, b. rewrite sum_l. apply sum_ext; intros j Hj.
    assert (E : S_Q i j l = scale * K j l); [|rewrite E; ring].
    apply (derivative_unique _ _ _ _ (HSQ i j l Hi Hj Hl)).
    eapply derive_eq; [exact (scores_moves (fun _ => scale) (fun u => along (s := [n_q; d_k]) Q u (unit i l))
      (fun _ => K) (fun _ => B) 0 0 (unit i l) zero zero (derive_const _ _) (moves_along Q (unit i l) 0) (moves_const _ _)
      (moves_const _ _) i Hi j Hj)|].
    unfold tscores, add, scaled, matmul, transpose, unit. simpl.
    rewrite (sum_ext d_k (fun k => δ i i * δ l k * K j k) (fun k => δ l k * K j k)) by (intros; rewrite δ_same; ring).
    rewrite (sum_δ d_k l (K j)) by exact Hl. rewrite (sum_0 d_k (fun k => _ * 0)) by (intros; ring). ring. }
  split.
  - refine (gradient_ext _ _ _ _ _ (proj1 (scores_backward scale Q K B _ dS HS))).
    intros i Hi l Hl. simpl. now rewrite Hab.
  - intros i l Hi Hl.
    assert (Hbc : b i l = c i l).
    { unfold b, c. f_equal. apply sum_ext; intros j Hj. rewrite ES by assumption. apply sum_r. }
    assert (Hcd : c i l = d i l).
    { unfold c, d. f_equal. apply sum_ext; intros j Hj. rewrite <- !sum_r. f_equal.
      rewrite <- ES by assumption. rewrite ES by assumption. exact (proj1 (HJ i j Hi Hj)). }
    assert (Hde : d i l = e i l).
    { unfold d, e. f_equal. apply sum_ext; intros j Hj. rewrite <- sum_r. f_equal.
      etransitivity; [exact (proj2 (HJ i j Hi Hj))|]. unfold D, P. ring. }
    repeat (split; [auto|]). unfold e, f. f_equal. apply sum_ext; intros j Hj. f_equal. f_equal. unfold D.
    rewrite (sum_ext n_k _ (fun k => P i k * (dO × V^T) i k)) by (intros; now rewrite EP).
    rewrite EP by assumption. apply dP_less_D.
Qed.

(** For one number of K, with sums alone: the last factor is the query's, and the sum goes over the queries. *)
Theorem eq_dK_chain n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let O := P × V in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun K => ℓ (attention M scale Q K V B)) K
    (fun j l => scale * ∑ i < n_q, P i j * (∑ a < d_v, dO i a * (V j a - O i a)) * Q i l).
Proof.
  intros P O H. apply (gradient_ext _ _ (scale • ((centered P (dO × V^T))^T × Q)));
    [|exact (gradient_K M scale Q K V B ℓ dO H)].
  intros j _ l _. simpl. unfold scaled. f_equal. apply sum_ext; intros i _.
  unfold transpose at 1. unfold centered. now rewrite dP_less_D.
Qed.

(** The loss may look at the weights too: a second gradient G arrives at P, and D gets a second term. *)
Theorem eq_D_weights n_q n_k d_v (M : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v])
    (ℓ : tensor [n_q; d_v] -> tensor [n_q; n_k] -> R) (dO : tensor [n_q; d_v]) (G : tensor [n_q; n_k]) :
  let P := softmax M S in
  let O := P × V in
  let dP := dO × V^T ⊕ G in
  gradient2 ℓ O P dO G ->
  gradient (fun P => ℓ (P × V) P) P dP /\
  gradient (fun S => ℓ (softmax M S × V) (softmax M S)) S (fun i j => P i j * (dP i j - rowsum (dP ∘ P) i)) /\
  forall i, rowsum (dP ∘ P) i = rowsum (dO ∘ O) i + rowsum (G ∘ P) i.
Proof.
  intros P O dP H.
  assert (HP : gradient (fun P => ℓ (P × V) P) P dP).
  { intros x t tP Hx Ht. eapply derive_eq; [apply (H (fun u => x u × V) x)|].
    - now rewrite Hx.
    - exact Hx.
    - apply (matmul_moves x (fun _ => V)); [exact Ht|apply moves_const].
    - exact Ht.
    - unfold dP. rewrite dot_add_r, dot_add_l, dot_matmul_r, (dot_matmul_l dO (x t) zero), dot_zero. ring. }
  split; [exact HP|split].
  - apply (gradient_ext _ _ (centered P dP)); [|exact (eq_softmax_vjp n_q n_k M S (fun P => ℓ (P × V) P) dP HP)].
    intros i _ j _. simpl. unfold centered, rowsum, hadamard. f_equal. f_equal. apply sum_ext; intros. ring.
  - intro i. unfold rowsum, hadamard, O, dP, add. rewrite <- (average_of_products P V dO), <- sum_plus.
    apply sum_ext; intros. ring.
Qed.

(** A loss of the output and of the log-sum-exp L: hand D − dL to the backward in place of D. (In a dead row L is −∞ in
    the book; here it is a constant that no score moves, and dS is 0 there.) *)
Theorem eq_dS_L n_q n_k d_v (M : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v])
    (ℓ : tensor [n_q; d_v] -> tensor [n_q] -> R) (dO : tensor [n_q; d_v]) (dL : tensor [n_q]) :
  let P := softmax M S in
  let O := P × V in
  let L := logsumexp M S in
  let dP := dO × V^T in
  let D := fun i => ∑ l < d_v, dO i l * O i l in
  gradient2 ℓ O L dO dL ->
  gradient (fun S => ℓ (softmax M S × V) (logsumexp M S)) S (fun i j => P i j * (dP i j - D i) + dL i * P i j) /\
  forall i j, P i j * (dP i j - D i) + dL i * P i j = P i j * (dP i j - (D i - dL i)).
Proof.
  intros P O L dP D H. split; [|intros; ring].
  intros x t tS Hx Ht. eapply derive_eq; [apply (H (fun u => softmax M (x u) × V) (fun u => logsumexp M (x u)))|].
  - now rewrite Hx.
  - now rewrite Hx.
  - apply (matmul_moves (fun u => softmax M (x u)) (fun _ => V)); [exact (softmax_moves M x t tS Ht)|apply moves_const].
  - exact (logsumexp_moves M x t tS Ht).
  - rewrite Hx. fold P. rewrite dot_add_r, (dot_matmul_l dO P zero), dot_zero, dot_matmul_r. fold dP.
    rewrite centered_adjoint. simpl. rewrite Rplus_0_r, <- sum_plus. apply sum_ext; intros i _.
    rewrite sum_l, <- sum_plus. apply sum_ext; intros j _.
    unfold centered, D, O, dP. rewrite average_of_products. ring.
Qed.

(** All inputs move at once: scores, weights and output move so. *)
Theorem eq_attention_jvp n_q n_k d_k d_v (M : mask) scale (Q : R -> tensor [n_q; d_k]) (K : R -> tensor [n_k; d_k])
    (V : R -> tensor [n_k; d_v]) (B : R -> tensor [n_q; n_k]) t (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k])
    (tV : tensor [n_k; d_v]) (tB : tensor [n_q; n_k]) :
  let P := weights M scale (Q t) (K t) (B t) in
  let tS := scale • (tQ × (K t)^T ⊕ Q t × tK^T) ⊕ tB in
  let tP : tensor [n_q; n_k] := fun i j => P i j * (tS i j - rowsum (tS ∘ P) i) in
  moves Q t tQ -> moves K t tK -> moves V t tV -> moves B t tB ->
  moves (s := [n_q; n_k]) (fun u => scores scale (Q u) (K u) (B u)) t tS /\
  moves (s := [n_q; n_k]) (fun u => weights M scale (Q u) (K u) (B u)) t tP /\
  moves (s := [n_q; d_v]) (fun u => attention M scale (Q u) (K u) (V u) (B u)) t (tP × V t ⊕ P × tV).
Proof.
  intros P tS tP HQ HK HV HB.
  assert (HS : moves (s := [n_q; n_k]) (fun u => scores scale (Q u) (K u) (B u)) t tS).
  { intros i Hi j Hj. eapply derive_eq.
    - exact (scores_moves (fun _ => scale) Q K B t 0 tQ tK tB (derive_const _ _) HQ HK HB i Hi j Hj).
    - unfold tscores, tS, add, scaled. ring. }
  assert (HP : moves (s := [n_q; n_k]) (fun u => weights M scale (Q u) (K u) (B u)) t tP).
  { intros i Hi j Hj. eapply derive_eq;
      [exact (softmax_moves M (fun u => scores scale (Q u) (K u) (B u)) t tS HS i Hi j Hj)|].
    unfold centered, tP, rowsum, hadamard. f_equal. f_equal. apply sum_ext; intros. apply Rmult_comm. }
  split; [exact HS|split; [exact HP|]].
  exact (matmul_moves (fun u => weights M scale (Q u) (K u) (B u)) V t tP tV HP HV).
Qed.

(** The backward pass is the adjoint of the forward one: what the output's change is worth is the sum of what the
    inputs' changes are worth. *)
Theorem attention_dot_product_test n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) (tQ : tensor [n_q; d_k])
    (tK : tensor [n_k; d_k]) (tV : tensor [n_k; d_v]) (tB : tensor [n_q; n_k]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let tS := scale • (tQ × K^T ⊕ Q × tK^T) ⊕ tB in
  let tP : tensor [n_q; n_k] := fun i j => P i j * (tS i j - ∑ k < n_k, P i k * tS i k) in
  ⟨dO, tP × V ⊕ P × tV⟩ = ⟨scale • (dS × K), tQ⟩ + ⟨scale • (dS^T × Q), tK⟩ + ⟨P^T × dO, tV⟩ + ⟨dS, tB⟩.
Proof.
  intros P dP dS tS tP. rewrite dot_add_r, (dot_matmul_r dO tP), (dot_matmul_l dO P).
  change tP with (centered P tS). rewrite centered_adjoint. change (centered P (dO × V^T)) with dS.
  assert (E : equal tS (tscores (fun _ => scale) (fun _ => Q) (fun _ => K) 0 0 tQ tK tB)).
  { intros i _ j _. unfold tscores, tS, add, scaled. simpl. ring. }
  rewrite (dot_ext dS dS _ _ (equal_refl dS) E), (scores_adjoint (fun _ => scale) (fun _ => Q) (fun _ => K)). ring.
Qed.

(** Four checks of the formulas of dQ, dK and dV. Rows of dS sum to 0, the rows of dK add up to 0, those of dV to those
    of dO (if no row is dead), and the last one ties dQ to dK. *)
Theorem eq_oracles n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let dQ := scale • (dS × K) in
  let dK := scale • (dS^T × Q) in
  let dV := P^T × dO in
  (forall i, ∑ j < n_k, dS i j = 0) /\
  (forall l, ∑ j < n_k, dK j l = 0) /\
  ((forall i, (i < n_q)%nat -> live M n_k i) -> forall l, ∑ j < n_k, dV j l = ∑ i < n_q, dO i l) /\
  (forall k l, (Q^T × dQ) k l = ((K^T × dK)^T) k l).
Proof.
  intros P dP dS dQ dK dV.
  assert (Hr : forall i, ∑ j < n_k, dS i j = 0) by (intro i; apply centered_rows).
  split; [exact Hr|split; [|split]].
  - intro l. unfold dK, scaled, matmul, transpose. rewrite <- sum_l, sum_swap, sum_0; [ring|].
    intros i _. rewrite <- sum_r, Hr. ring.
  - intros HL l. unfold dV, matmul, transpose. rewrite sum_swap. apply sum_ext; intros i Hi.
    rewrite <- sum_r. unfold P, weights. rewrite softmax_sum by auto. ring.
  - intros k l. unfold dQ, dK, scaled, matmul, transpose.
    transitivity (∑ i < n_q, ∑ j < n_k, scale * Q i k * dS i j * K j l).
    { apply sum_ext; intros i _. rewrite !sum_l. apply sum_ext; intros. ring. }
    rewrite sum_swap. apply sum_ext; intros j _. rewrite !sum_l. apply sum_ext; intros. ring.
Qed.

(** The gradient of the scale: the inner product of dS with QKᵀ, or of Q with dQ, over the scale. *)
Theorem eq_dscale n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let dQ := scale • (dS × K) in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (s := []) (fun scale => ℓ (attention M scale Q K V B)) scale ⟨dS, Q × K^T⟩ /\
  (scale <> 0 -> ⟨dS, Q × K^T⟩ = ⟨Q, dQ⟩ / scale).
Proof.
  intros P dP dS dQ H. split; [exact (gradient_scale M scale Q K V B ℓ dO H)|].
  intro H0. unfold dQ. rewrite dot_scaled_r, dot_matmul_r, (dot_comm Q). unfold Rdiv.
  change ((K^T)^T) with K. field. exact H0.
Qed.

(** dQ is the scale times a covariance, with the weights of the row: of where the keys are, and what they are worth. *)
Theorem eq_dQ_covariance n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let D := fun i => ∑ k < n_k, P i k * dP i k in
  let dS := fun i j => P i j * (dP i j - D i) in
  let mean_key := fun i l => ∑ j < n_k, P i j * K j l in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q
    (fun i l => scale * ∑ j < n_k, P i j * (dP i j - D i) * (K j l - mean_key i l)) /\
  forall i l, ∑ j < n_k, dS i j * K j l = ∑ j < n_k, dS i j * (K j l - mean_key i l).
Proof.
  intros P dP D dS mean_key H.
  assert (E : forall i l, ∑ j < n_k, dS i j * K j l = ∑ j < n_k, dS i j * (K j l - mean_key i l)).
  { intros i l. transitivity (∑ j < n_k, (dS i j * K j l - dS i j * mean_key i l)); [|apply sum_ext; intros; ring].
    assert (H0 : sum n_k (dS i) = 0) by exact (centered_rows M (scores scale Q K B) dP i).
    rewrite sum_minus, <- (sum_r (mean_key i l) n_k (dS i)), H0. ring. }
  split; [|exact E].
  apply (gradient_ext _ _ (scale • ((centered P dP) × K))); [|exact (gradient_Q M scale Q K V B ℓ dO H)].
  intros i _ l _. simpl. unfold scaled. f_equal. exact (E i l).
Qed.

(** ** What may stand between the scores and the softmax *)

(** An op that multiplies all scores: its gradient and its tangent are multiplied by the same number. *)
Theorem eq_op_scale m n scale (S : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dS' : tensor [m; n]) :
  (gradient ℓ (scale • S) dS' -> gradient (fun S => ℓ (scale • S)) S (scale • dS')) /\
  (forall s t tS, moves s t tS -> moves (s := [m; n]) (fun u => scale • s u) t (scale • tS)).
Proof.
  split; [intro H; exact (proj1 (scaled_backward scale S ℓ dS' H))|intros s t tS; apply scaled_moves].
Qed.

(** [place r c B]: each score takes its bias from entry (r i j, c i j) of B. Every way of stretching an array is one. *)
Definition place {m n p q} (r c : nat -> nat -> nat) (B : tensor [p; q]) : tensor [m; n] :=
  fun i j => B (r i j) (c i j).

Lemma place_moves {m n p q} r c (b : R -> tensor [p; q]) t tB :
  (forall i j, (i < m)%nat -> (j < n)%nat -> (r i j < p)%nat /\ (c i j < q)%nat) ->
  moves b t tB -> moves (s := [m; n]) (fun u => place r c (b u)) t (place r c tB).
Proof. intros Hin H i Hi j Hj. destruct (Hin i j Hi Hj). now apply H. Qed.

Lemma place_adjoint {m n p q} r c (dS : tensor [m; n]) (B : tensor [p; q]) :
  (forall i j, (i < m)%nat -> (j < n)%nat -> (r i j < p)%nat /\ (c i j < q)%nat) ->
  dot (s := [m; n]) dS (place r c B) =
  dot (s := [p; q]) (fun k l => ∑ i < m, ∑ j < n, δ (r i j) k * δ (c i j) l * dS i j) B.
Proof.
  intro Hin. simpl. unfold place.
  transitivity (∑ i < m, ∑ j < n, ∑ k < p, ∑ l < q, δ (r i j) k * (δ (c i j) l * (dS i j * B k l))).
  - apply sum_ext; intros i Hi. apply sum_ext; intros j Hj. destruct (Hin i j Hi Hj) as [Hk Hl].
    transitivity (∑ k < p, δ (r i j) k * ∑ l < q, δ (c i j) l * (dS i j * B k l));
      [|apply sum_ext; intros; apply sum_l].
    rewrite (sum_δ p (r i j)) by exact Hk. rewrite (sum_δ q (c i j)) by exact Hl. reflexivity.
  - transitivity (∑ i < m, ∑ k < p, ∑ j < n, ∑ l < q, δ (r i j) k * (δ (c i j) l * (dS i j * B k l)));
      [apply sum_ext; intros; apply sum_swap|].
    rewrite sum_swap. apply sum_ext; intros k _.
    transitivity (∑ i < m, ∑ l < q, ∑ j < n, δ (r i j) k * (δ (c i j) l * (dS i j * B k l)));
      [apply sum_ext; intros; apply sum_swap|].
    rewrite sum_swap. apply sum_ext; intros l _.
    rewrite sum_r. apply sum_ext; intros i _. rewrite sum_r. apply sum_ext; intros. ring.
Qed.

(** A bias that is added to the scores: the scores get dS' as it is, and so does a bias of the full shape. *)
Theorem eq_op_bias m n (S B : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dS' : tensor [m; n]) :
  gradient ℓ (S ⊕ B) dS' -> gradient (fun S => ℓ (S ⊕ B)) S dS' /\ gradient (fun B => ℓ (S ⊕ B)) B dS'.
Proof. apply (eq_elementwise__sum m n S B ℓ dS'). Qed.

(** However an array B is repeated over the scores, an entry of dB is the sum of dS' over the places that took that
    entry. *)
Theorem eq_op_bias__any m n p q (r c : nat -> nat -> nat) (S : tensor [m; n]) (B : tensor [p; q])
    (ℓ : tensor [m; n] -> R) (dS' : tensor [m; n]) :
  (forall i j, (i < m)%nat -> (j < n)%nat -> (r i j < p)%nat /\ (c i j < q)%nat) ->
  gradient ℓ (S ⊕ (fun i j => B (r i j) (c i j))) dS' ->
  gradient (fun B : tensor [p; q] => ℓ (S ⊕ (fun i j => B (r i j) (c i j)))) B
    (fun k l => ∑ i < m, ∑ j < n, δ (r i j) k * δ (c i j) l * dS' i j).
Proof.
  intros Hin H. apply (backward (place r c) B (place r c) (fun B' => ℓ (S ⊕ B')) dS').
  - intros x t tB _ Ht. now apply place_moves.
  - intro tB. now apply place_adjoint.
  - exact (proj2 (eq_op_bias m n S (place r c B) ℓ dS' H)).
Qed.

(** The usual repetitions: one bias a key, one a query, one in all. The gradient is summed over the repeated axes. *)
Theorem eq_op_bias__axes m n (S : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dS' : tensor [m; n]) :
    (forall b : tensor [n], gradient ℓ (S ⊕ (fun i j => b j)) dS' ->
    gradient (fun b : tensor [n] => ℓ (S ⊕ (fun i j => b j))) b (fun j => ∑ i < m, dS' i j)) /\
    (forall b : tensor [m], gradient ℓ (S ⊕ (fun i j => b i)) dS' ->
    gradient (fun b : tensor [m] => ℓ (S ⊕ (fun i j => b i))) b (fun i => ∑ j < n, dS' i j)) /\
    (forall b : tensor [], gradient ℓ (S ⊕ (fun i j => b)) dS' ->
    gradient (fun b : tensor [] => ℓ (S ⊕ (fun i j => b))) b (∑ i < m, ∑ j < n, dS' i j)).
Proof.
  destruct (eq_broadcast_vjp m n (fun B => ℓ (S ⊕ B)) dS') as [Hkey [Hquery Hone]].
  assert (H : forall B, gradient ℓ (S ⊕ B) dS' -> gradient (fun B => ℓ (S ⊕ B)) B dS')
    by (intros B H; exact (proj2 (eq_op_bias m n S B ℓ dS' H))).
  split; [|split]; intros b Hb; [apply Hkey|apply Hquery|apply Hone]; apply H, Hb.
Qed.

(** An op that overwrites the forbidden scores, with any numbers (−∞ is eq_softmax_masked__limit): the allowed scores
    get dS', the forbidden ones exactly 0. *)
Theorem eq_op_mask m n (M : mask) (S c : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dS' : tensor [m; n]) :
  let fill := fun S : tensor [m; n] => (fun i j => if M i j then S i j else c i j) : tensor [m; n] in
  gradient ℓ (fill S) dS' -> gradient (fun S => ℓ (fill S)) S (fun i j => if M i j then dS' i j else 0).
Proof.
  intro fill. apply (backward fill S (fun tS => (fun i j => if M i j then tS i j else 0) : tensor [m; n]) ℓ dS').
  - intros x t tS _ Ht i Hi j Hj. unfold fill. destruct (M i j); [now apply Ht|apply derive_const].
  - intro tS. simpl. apply sum_ext; intros i _. apply sum_ext; intros j _. destruct (M i j); ring.
Qed.

(** Causal masks: counted from the top left corner of the table, or from the bottom right. *)
Definition causal : mask := fun i j => (j <=? i)%nat.
Definition causal_bottom_right (n_q n_k : nat) : mask := fun i j => (j + n_q <=? i + n_k)%nat.

(** Query i sees the keys up to i + shift. The shift is 0 from the top left, n_k − n_q from the bottom right. *)
Theorem eq_op_causal n_q n_k i j :
  (causal i j = true <-> INR j <= INR i + 0) /\
  (causal_bottom_right n_q n_k i j = true <-> INR j <= INR i + (INR n_k - INR n_q)).
Proof.
  unfold causal, causal_bottom_right. rewrite !Nat.leb_le. split.
  - rewrite Rplus_0_r. split; [apply le_INR|apply INR_le].
  - split; intro H.
    + apply le_INR in H. rewrite !plus_INR in H. lra.
    + apply INR_le. rewrite !plus_INR. lra.
Qed.

(** ** Gradients that are exactly 0 *)

(** A dead row has no weights and the output 0, and its rows of dS and dQ are 0. *)
Theorem dead_row_gets_nothing n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) i :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall k, (k < n_k)%nat -> M i k = false) ->
  (forall j, (j < n_k)%nat -> P i j = 0 /\ dS i j = 0) /\
  (forall l, attention M scale Q K V B i l = 0) /\
  (forall l, (scale • (dS × K)) i l = 0).
Proof.
  intros P dP dS HD. assert (HP : forall j, (j < n_k)%nat -> P i j = 0) by (intros; apply softmax_forbidden; auto).
  split; [|split].
  - intros j Hj. split; [now apply HP|]. unfold dS. rewrite HP by exact Hj. ring.
  - intro l. apply sum_0. intros j Hj. fold P. rewrite (HP j Hj). ring.
  - intro l. unfold scaled, matmul. rewrite sum_0; [ring|]. intros j Hj. unfold dS. rewrite HP by exact Hj. ring.
Qed.

(** A query that sees one key, or none, has a row of dS that is 0, and so a row of dQ: one key has the weight 1 whatever
    its score is. So under a causal mask the first query's dQ is 0. *)
Theorem one_key_no_gradient n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) i :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall j k, (j < n_k)%nat -> (k < n_k)%nat -> M i j = true -> M i k = true -> j = k) ->
  (forall j, (j < n_k)%nat -> dS i j = 0) /\ (forall l, (scale • (dS × K)) i l = 0).
Proof.
  intros P dP dS H1. assert (H0 : forall j, (j < n_k)%nat -> dS i j = 0).
  { intros j Hj. unfold dS. destruct (M i j) eqn:HM.
    - assert (Hother : forall k, (k < n_k)%nat -> k <> j -> P i k = 0).
      { intros k Hk Hne. apply softmax_forbidden. destruct (M i k) eqn:HM';
          [|reflexivity]. exfalso. apply Hne. now apply H1. }
      assert (Hone : P i j = 1).
      { rewrite <- (softmax_sum M (scores scale Q K B) i) by now exists j. symmetry. apply (sum_one n_k j); auto. }
      rewrite (sum_one n_k j); [rewrite Hone; ring|exact Hj|]. intros k Hk Hne. rewrite Hother by assumption. ring.
    - unfold P, weights. rewrite (softmax_forbidden M _ i j HM). ring. }
  split; [exact H0|]. intro l. unfold scaled, matmul. rewrite sum_0; [ring|]. intros j Hj. rewrite H0 by exact Hj. ring.
Qed.

(** If all values are equal, whoever wins, the output is the same: dS is 0. *)
Theorem equal_values_no_gradient n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall j k l, (j < n_k)%nat -> (k < n_k)%nat -> (l < d_v)%nat -> V j l = V k l) ->
  forall i j, (j < n_k)%nat -> dS i j = 0.
Proof.
  intros P dP dS HV i j Hj. unfold dS. destruct (M i j) eqn:HM.
  - assert (E : ∑ k < n_k, P i k * dP i k = dP i j); [|rewrite E; ring].
    transitivity (∑ k < n_k, P i k * dP i j).
    + apply sum_ext; intros k Hk. f_equal. unfold dP, matmul, transpose. apply sum_ext; intros l Hl. f_equal.
      now apply HV.
    + rewrite <- sum_r. unfold P, weights. rewrite softmax_sum; [ring|]. now exists j.
  - unfold P, weights. rewrite (softmax_forbidden M _ i j HM). ring.
Qed.

(** A loss of the output and of L: with dL in dS, the formulas of dQ, dK and dB stay as they are, and dV does not see
    L. In a dead row L is a constant here (Coq's ln 0 = 0). *)
Theorem gradients_with_L n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> tensor [n_q] -> R)
    (dO : tensor [n_q; d_v])
    (dL : tensor [n_q]) :
  let P := weights M scale Q K B in
  let O := P × V in
  let dP := dO × V^T in
  let D := fun i => ∑ l < d_v, dO i l * O i l in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - (D i - dL i)) in
  let loss := fun Q K V B => ℓ (attention M scale Q K V B) (logsumexp M (scores scale Q K B)) in
  gradient2 ℓ O (logsumexp M (scores scale Q K B)) dO dL ->
  gradient (fun Q => loss Q K V B) Q (scale • (dS × K)) /\
  gradient (fun K => loss Q K V B) K (scale • (dS^T × Q)) /\
  gradient (fun V => loss Q K V B) V (P^T × dO) /\
  gradient (fun B => loss Q K V B) B dS.
Proof.
  intros P O dP D dS loss H.
  assert (HS : gradient (fun S => ℓ (softmax M S × V) (logsumexp M S)) (scores scale Q K B) dS).
  { destruct (eq_dS_L n_q n_k d_v M (scores scale Q K B) V ℓ dO dL H) as [H1 H2].
    refine (gradient_ext _ _ _ _ _ H1). intros i _ j _. apply H2. }
  destruct (scores_backward scale Q K B _ dS HS) as [HQ [HK [HB _]]].
  split; [exact HQ|split; [exact HK|split; [|exact HB]]].
  intros x t tV Hx Ht. eapply derive_eq; [apply (H (fun u => P × x u) (fun _ => logsumexp M (scores scale Q K B)))|].
  - now rewrite Hx.
  - reflexivity.
  - apply (matmul_moves (fun _ => P) x t zero tV (moves_const _ _) Ht).
  - apply moves_const.
  - rewrite dot_zero, dot_add_r, (dot_matmul_r dO zero), dot_zero, dot_matmul_l. ring.
Qed.
