(** * A single head (chapter 4)

    Any scale, any bias, any mask; n_q queries and n_k keys; d_k and d_v may differ. *)

From attnbook Require Export softmax.

Definition scores {n_q n_k d_k} (scale : R) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (B : tensor [n_q; n_k])
  : tensor [n_q; n_k] := scale • (Q × K^T) ⊕ B.
Definition weights {n_q n_k d_k} (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (B : tensor [n_q; n_k])
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
    intros i Hi j Hj. unfold scores, tscores, scaled, add. apply (derive_plus (fun u => c u * (q u × (k u)^T) i j) (fun u => b u i j)); [|now apply HB].
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
    - rewrite dot_add_r, (dot_matmul_r dO), dot_matmul_l, centered_adjoint. fold dS. rewrite scores_adjoint. reflexivity.
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
    intros x t tX Hx Ht. refine (derive_eq _ _ _ _ (attention_derive M (fun _ => scale) x (fun _ => K) (fun _ => V) (fun _ => B) t 0 tX zero zero zero
      (derive_const _ _) Ht (moves_const _ _) (moves_const _ _) (moves_const _ _) ℓ dO _) _); [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. one.
  Qed.

  Lemma gradient_K : gradient (fun K => ℓ (attention M scale Q K V B)) K (scale • (dS^T × Q)).
  Proof.
    intros x t tX Hx Ht. refine (derive_eq _ _ _ _ (attention_derive M (fun _ => scale) (fun _ => Q) x (fun _ => V) (fun _ => B) t 0 zero tX zero zero
      (derive_const _ _) (moves_const _ _) Ht (moves_const _ _) (moves_const _ _) ℓ dO _) _); [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. one.
  Qed.

  Lemma gradient_V : gradient (fun V => ℓ (attention M scale Q K V B)) V (P^T × dO).
  Proof.
    intros x t tX Hx Ht. refine (derive_eq _ _ _ _ (attention_derive M (fun _ => scale) (fun _ => Q) (fun _ => K) x (fun _ => B) t 0 zero zero tX zero
      (derive_const _ _) (moves_const _ _) (moves_const _ _) Ht (moves_const _ _) ℓ dO _) _); [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. one.
  Qed.

  Lemma gradient_B : gradient (fun B => ℓ (attention M scale Q K V B)) B dS.
  Proof.
    intros x t tX Hx Ht. refine (derive_eq _ _ _ _ (attention_derive M (fun _ => scale) (fun _ => Q) (fun _ => K) (fun _ => V) x t 0 zero zero zero tX
      (derive_const _ _) (moves_const _ _) (moves_const _ _) (moves_const _ _) Ht ℓ dO _) _); [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. one.
  Qed.

  Lemma gradient_scale : gradient (s := []) (fun scale => ℓ (attention M scale Q K V B)) scale ⟨dS, Q × K^T⟩.
  Proof.
    intros x t tX Hx Ht. refine (derive_eq _ _ _ _ (attention_derive M x (fun _ => Q) (fun _ => K) (fun _ => V) (fun _ => B) t tX zero zero zero zero
      Ht (moves_const _ _) (moves_const _ _) (moves_const _ _) (moves_const _ _) ℓ dO _) _); [rewrite Hx; exact Hℓ|]. rewrite Hx. fold P dS. rewrite !dot_zero. simpl. ring.
  Qed.
End of_one_input.

(** ** The chapter's theorems *)

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
