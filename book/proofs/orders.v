(** * The second order

    How the derivative of a head moves when its inputs move again: the second derivative along two directions, and how
    dQ, dK and dV move, which is the product of the Hessian with a direction. Any scale, bias and mask, dead rows too. *)

From attnbook Require Export heads.

(** ** Softmax *)

(** What softmax's weights do along two directions: P times what A and B have in common here, more than the row's average. *)
Definition common {m n} (P A B : tensor [m; n]) : tensor [m; n] := fun i j =>
  let a := ∑ k < n, P i k * A i k in
  let b := ∑ k < n, P i k * B i k in
  P i j * ((A i j - a) * (B i j - b) - ∑ k < n, P i k * ((A i k - a) * (B i k - b))).

Lemma common_comm {m n} (P A B : tensor [m; n]) i j : common P A B i j = common P B A i j.
Proof.
  unfold common. rewrite (Rmult_comm (A i j - _)). f_equal. f_equal. apply sum_ext; intros. ring.
Qed.

(** When the weights move by [centered P tS], what they make of A moves so. *)
Lemma centered_moves {m n} M (s a : R -> tensor [m; n]) t tS tA :
  moves s t tS -> moves a t tA ->
  moves (s := [m; n]) (fun u => centered (softmax M (s u)) (a u)) t
    (common (softmax M (s t)) (a t) tS ⊕ centered (softmax M (s t)) tA).
Proof.
  intros HS HA i Hi j Hj. set (P := softmax M (s t)).
  pose proof (softmax_moves M s t tS HS) as HP. fold P in HP. unfold centered at 1. eapply derive_eq.
  - apply (derive_mult (fun u => softmax M (s u) i j) (fun u => a u i j - ∑ k < n, softmax M (s u) i k * a u i k)).
    + exact (HP i Hi j Hj).
    + apply (derive_minus (fun u => a u i j) (fun u => ∑ k < n, softmax M (s u) i k * a u i k)); [exact (HA i Hi j Hj)|].
      apply (sum_derive n (fun k u => softmax M (s u) i k * a u i k)). intros k Hk.
      apply (derive_mult (fun u => softmax M (s u) i k) (fun u => a u i k)); [exact (HP i Hi k Hk)|exact (HA i Hi k Hk)].
  - cbv beta. fold P. pose proof (centered_softmax_rows M (s t) tS i) as H0. fold P in H0.
    unfold add, common. rewrite sum_plus. set (α := ∑ k < n, P i k * a t i k). set (β := ∑ k < n, P i k * tS i k).
    assert (E : ∑ k < n, centered P tS i k * a t i k = (∑ k < n, P i k * ((a t i k - α) * (tS i k - β))) + α * ∑ k < n, centered P tS i k).
    { rewrite sum_l, <- sum_plus. apply sum_ext; intros k _. unfold centered. fold β. ring. }
    rewrite E, H0. unfold centered. fold β. ring.
Qed.

(** The second derivative of softmax: move the scores along A, look how fast, and move them along B. The formula does not
    ask which came first. *)
Theorem softmax_second_derivative n_q n_k (M : mask) (S : R -> tensor [n_q; n_k]) t (A B : tensor [n_q; n_k]) :
  let P := softmax M (S t) in
  let a := rowsum (P ∘ A) in
  let b := rowsum (P ∘ B) in
  moves S t B ->
  moves (s := [n_q; n_k]) (fun u i j => softmax M (S u) i j * (A i j - ∑ k < n_k, softmax M (S u) i k * A i k)) t
    (fun i j => P i j * ((A i j - a i) * (B i j - b i) - ∑ k < n_k, P i k * ((A i k - a i) * (B i k - b i)))).
Proof.
  intros P a b H. refine (moves_ext _ _ _ _ _ (fun u => equal_refl _) _ (centered_moves M S (fun _ => A) t B zero H (moves_const _ _))).
  intros i _ j _. assert (E : centered P (zero (s := [n_q; n_k])) i j = 0).
  { unfold centered. simpl. rewrite sum_0; [ring|]. intros. ring. }
  etransitivity; [exact (f_equal (Rplus (common P A B i j)) E)|]. apply Rplus_0_r.
Qed.

(** ** A head *)

Definition tscore {n_q n_k d_k} scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (tQ : tensor [n_q; d_k])
  (tK : tensor [n_k; d_k]) (tB : tensor [n_q; n_k]) : tensor [n_q; n_k] := scale • (tQ × K^T ⊕ Q × tK^T) ⊕ tB.

(** Forward mode: how the output moves along the direction (tQ, tK, tV, tB). *)
Definition toutput {n_q n_k d_k d_v} (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
  (B : tensor [n_q; n_k]) (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k]) (tV : tensor [n_k; d_v]) (tB : tensor [n_q; n_k])
  : tensor [n_q; d_v] :=
  let P := weights M scale Q K B in centered P (tscore scale Q K tQ tK tB) × V ⊕ P × tV.

Section moving.
  Context {n_q n_k d_k d_v : nat} (M : mask) (scale : R).
  Context (q : R -> tensor [n_q; d_k]) (k : R -> tensor [n_k; d_k]) (v : R -> tensor [n_k; d_v]) (b : R -> tensor [n_q; n_k]).
  Context (t : R) (uQ : tensor [n_q; d_k]) (uK : tensor [n_k; d_k]) (uV : tensor [n_k; d_v]) (uB : tensor [n_q; n_k]).
  Hypothesis (HQ : moves q t uQ) (HK : moves k t uK) (HV : moves v t uV) (HB : moves b t uB).
  Let P := weights M scale (q t) (k t) (b t).
  Let uS := tscore scale (q t) (k t) uQ uK uB.

  Lemma score_moves : moves (s := [n_q; n_k]) (fun u => scores scale (q u) (k u) (b u)) t uS.
  Proof.
    exact (add_moves (fun u => scale • (q u × (k u)^T)) b t _ _
      (scaled_moves scale (fun u => q u × (k u)^T) t _ (matmul_moves q (fun u => (k u)^T) t _ _ HQ (transpose_moves k t _ HK))) HB).
  Qed.

  Lemma weight_moves : moves (s := [n_q; n_k]) (fun u => weights M scale (q u) (k u) (b u)) t (centered P uS).
  Proof. exact (softmax_moves M (fun u => scores scale (q u) (k u) (b u)) t _ score_moves). Qed.

  Lemma output_moves : moves (s := [n_q; d_v]) (fun u => attention M scale (q u) (k u) (v u) (b u)) t (toutput M scale (q t) (k t) (v t) (b t) uQ uK uV uB).
  Proof. exact (matmul_moves (fun u => weights M scale (q u) (k u) (b u)) v t _ _ weight_moves HV). Qed.

  Lemma const_l_moves {m n p} (A : tensor [m; n]) (x : R -> tensor [n; p]) tX :
    moves x t tX -> moves (s := [m; p]) (fun u => A × x u) t (A × tX).
  Proof.
    intros H i Hi j Hj. apply (sum_derive n (fun l u => A i l * x u l j)). intros l Hl.
    apply (derive_scale (A i l) (fun u => x u l j)). exact (H l Hl j Hj).
  Qed.

  Lemma const_r_moves {m n p} (A : tensor [n; p]) (x : R -> tensor [m; n]) tX :
    moves x t tX -> moves (s := [m; p]) (fun u => x u × A) t (tX × A).
  Proof.
    intros H i Hi j Hj. apply (sum_derive n (fun l u => x u i l * A l j)). intros l Hl.
    eapply derive_eq; [apply derive_mult; [exact (H i Hi l Hl)|apply derive_const]|cbv beta; ring].
  Qed.

  Lemma add_const_moves {m n} (A : tensor [m; n]) (x : R -> tensor [m; n]) tX :
    moves x t tX -> moves (s := [m; n]) (fun u => x u ⊕ A) t tX.
  Proof.
    intros H i Hi j Hj. eapply derive_eq; [apply (derive_plus (fun u => x u i j) (fun _ => A i j)); [exact (H i Hi j Hj)|apply derive_const]|ring].
  Qed.

  Lemma toutput_moves tQ tK tV tB :
    let tS := tscore scale (q t) (k t) tQ tK tB in
    let tuS := scale • (tQ × uK^T ⊕ uQ × tK^T) in
    moves (s := [n_q; d_v]) (fun u => toutput M scale (q u) (k u) (v u) (b u) tQ tK tV tB) t
      ((common P tS uS ⊕ centered P tuS) × v t ⊕ centered P tS × uV ⊕ centered P uS × tV).
  Proof.
    intros tS tuS.
    assert (HS : moves (s := [n_q; n_k]) (fun u => tscore scale (q u) (k u) tQ tK tB) t tuS).
    { apply (add_const_moves tB (fun u => scale • (tQ × (k u)^T ⊕ q u × tK^T))). apply (scaled_moves scale (fun u => tQ × (k u)^T ⊕ q u × tK^T)).
      apply (add_moves (fun u => tQ × (k u)^T) (fun u => q u × tK^T)).
      - apply (const_l_moves tQ (fun u => (k u)^T)). now apply transpose_moves.
      - now apply (const_r_moves (tK^T) q). }
    refine (add_moves (fun u => centered (weights M scale (q u) (k u) (b u)) (tscore scale (q u) (k u) tQ tK tB) × v u)
      (fun u => weights M scale (q u) (k u) (b u) × tV) t _ _ _ _).
    - refine (matmul_moves (fun u => centered (weights M scale (q u) (k u) (b u)) (tscore scale (q u) (k u) tQ tK tB)) v t _ _ _ HV).
      exact (centered_moves M (fun u => scores scale (q u) (k u) (b u)) (fun u => tscore scale (q u) (k u) tQ tK tB) t _ _ score_moves HS).
    - exact (const_r_moves tV (fun u => weights M scale (q u) (k u) (b u)) _ weight_moves).
  Qed.

  Context (dO : R -> tensor [n_q; d_v]) (udO : tensor [n_q; d_v]).
  Hypothesis HdO : moves dO t udO.

  Lemma dscore_moves :
    let dP := dO t × (v t)^T in
    let udP := udO × (v t)^T ⊕ dO t × uV^T in
    moves (s := [n_q; n_k]) (fun u => centered (weights M scale (q u) (k u) (b u)) (dO u × (v u)^T)) t (common P dP uS ⊕ centered P udP).
  Proof.
    intros dP udP.
    exact (centered_moves M (fun u => scores scale (q u) (k u) (b u)) (fun u => dO u × (v u)^T) t _ _ score_moves
      (matmul_moves dO (fun u => (v u)^T) t _ _ HdO (transpose_moves v t _ HV))).
  Qed.
End moving.

(** The second derivative of a head: its velocity along one direction (tQ, tK, tV, tB), when the inputs move along another
    (uQ, uK, uV, uB). Scores have a second derivative of their own, since Q and K are multiplied. *)
Theorem head_second_derivative n_q n_k d_k d_v (M : mask) scale (Q : R -> tensor [n_q; d_k]) (K : R -> tensor [n_k; d_k])
    (V : R -> tensor [n_k; d_v]) (B : R -> tensor [n_q; n_k]) t
    (tQ uQ : tensor [n_q; d_k]) (tK uK : tensor [n_k; d_k]) (tV uV : tensor [n_k; d_v]) (tB uB : tensor [n_q; n_k]) :
  let P := weights M scale (Q t) (K t) (B t) in
  let tS := scale • (tQ × (K t)^T ⊕ Q t × tK^T) ⊕ tB in
  let uS := scale • (uQ × (K t)^T ⊕ Q t × uK^T) ⊕ uB in
  let tuS := scale • (tQ × uK^T ⊕ uQ × tK^T) in
  let tP := fun i j => P i j * (tS i j - ∑ k < n_k, P i k * tS i k) in
  let uP := fun i j => P i j * (uS i j - ∑ k < n_k, P i k * uS i k) in
  let tuP : tensor [n_q; n_k] := fun i j => common P tS uS i j + P i j * (tuS i j - ∑ k < n_k, P i k * tuS i k) in
  moves Q t uQ -> moves K t uK -> moves V t uV -> moves B t uB ->
  moves (s := [n_q; d_v]) (fun u => toutput M scale (Q u) (K u) (V u) (B u) tQ tK tV tB) t
    (tuP × V t ⊕ tP × uV ⊕ uP × tV).
Proof. intros P tS uS tuS tP uP tuP HQ HK HV HB. exact (toutput_moves M scale Q K V B t uQ uK uV uB HQ HK HV HB tQ tK tV tB). Qed.

(** It is symmetric: first along t, then along u, is first along u, then along t. *)
Theorem head_second_derivative_symmetric n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k])
    (tQ uQ : tensor [n_q; d_k]) (tK uK : tensor [n_k; d_k]) (tV uV : tensor [n_k; d_v]) (tB uB : tensor [n_q; n_k]) :
  let P := weights M scale Q K B in
  let second (tQ uQ : tensor [n_q; d_k]) (tK uK : tensor [n_k; d_k]) (tV uV : tensor [n_k; d_v]) (tB uB : tensor [n_q; n_k]) :=
    let tS := scale • (tQ × K^T ⊕ Q × tK^T) ⊕ tB in
    let uS := scale • (uQ × K^T ⊕ Q × uK^T) ⊕ uB in
    let tuS := scale • (tQ × uK^T ⊕ uQ × tK^T) in
    (common P tS uS ⊕ centered P tuS) × V ⊕ centered P tS × uV ⊕ centered P uS × tV in
  equal (second tQ uQ tK uK tV uV tB uB) (second uQ tQ uK tK uV tV uB tB).
Proof.
  intros P second i _ j _. unfold second.
  set (tS := scale • (tQ × K^T ⊕ Q × tK^T) ⊕ tB). set (uS := scale • (uQ × K^T ⊕ Q × uK^T) ⊕ uB).
  set (tuS := scale • (tQ × uK^T ⊕ uQ × tK^T)). set (utS := scale • (uQ × tK^T ⊕ tQ × uK^T)).
  assert (E : ((common P tS uS ⊕ centered P tuS) × V) i j = ((common P uS tS ⊕ centered P utS) × V) i j).
  { apply sum_ext; intros k _. f_equal. unfold add. rewrite common_comm. f_equal. unfold centered.
    assert (ES : forall k, tuS i k = utS i k) by (intro; unfold tuS, utS, scaled, add; ring).
    rewrite ES. f_equal. f_equal. apply sum_ext; intros. now rewrite ES. }
  change (((common P tS uS ⊕ centered P tuS) × V) i j + (centered P tS × uV) i j + (centered P uS × tV) i j =
    ((common P uS tS ⊕ centered P utS) × V) i j + (centered P uS × tV) i j + (centered P tS × uV) i j).
  rewrite E. ring.
Qed.
