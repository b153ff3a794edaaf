(** * The second order of a head (chapter 13)

    How the derivative of a head moves when its inputs move again: the second derivative along two directions, and how
    dQ, dK and dV move, which is the product of the Hessian with a direction. Any scale, bias and mask, dead rows too.
    *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export heads.

(** ** Softmax *)

(** What softmax's weights do along two directions: P times what A and B have in common here, more than the row's
    average. *)
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
    + apply (derive_minus (fun u => a u i j) (fun u => ∑ k < n, softmax M (s u) i k * a u i k));
      [exact (HA i Hi j Hj)|].
      apply (sum_derive n (fun k u => softmax M (s u) i k * a u i k)). intros k Hk.
      apply (derive_mult (fun u => softmax M (s u) i k) (fun u => a u i k));
        [exact (HP i Hi k Hk)|exact (HA i Hi k Hk)].
  - cbv beta. fold P. pose proof (centered_rows M (s t) tS i) as H0. fold P in H0.
    unfold add, common. rewrite sum_plus. set (α := ∑ k < n, P i k * a t i k). set (β := ∑ k < n, P i k * tS i k).
    assert (E : ∑ k < n, centered P tS i k * a t i k = (∑ k < n, P i k * ((a t i k - α) * (tS i k - β))) + α * ∑ k < n,
      centered P tS i k).
    { rewrite sum_l, <- sum_plus. apply sum_ext; intros k _. unfold centered. fold β. ring. }
    rewrite E, H0. unfold centered. fold β. ring.
Qed.

(** The second derivative of softmax: move the scores along A, look how fast, and move them along B. The formula does
    not ask which came first. *)
Theorem eq_orders_third__softmax n_q n_k (M : mask) (S : R -> tensor [n_q; n_k]) t (A B : tensor [n_q; n_k]) :
  let P := softmax M (S t) in
  let a := rowsum (P ∘ A) in
  let b := rowsum (P ∘ B) in
  moves S t B ->
  moves (s := [n_q; n_k]) (fun u i j => softmax M (S u) i j * (A i j - ∑ k < n_k, softmax M (S u) i k * A i k)) t
    (fun i j => P i j * ((A i j - a i) * (B i j - b i) - ∑ k < n_k, P i k * ((A i k - a i) * (B i k - b i)))).
Proof.
  intros P a b H. refine (moves_ext _ _ _ _ _ (fun u => equal_refl _) _
    (centered_moves M S (fun _ => A) t B zero H (moves_const _ _))).
  intros i _ j _. assert (E : centered P (zero (s := [n_q; n_k])) i j = 0).
  { unfold centered. simpl. rewrite sum_0; [ring|]. intros. ring. }
  etransitivity; [exact (f_equal (Rplus (common P A B i j)) E)|]. apply Rplus_0_r.
Qed.

(** ** A head *)

Definition tscore {n_q n_k d_k} scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (tQ : tensor [n_q; d_k])
  (tK : tensor [n_k; d_k]) (tB : tensor [n_q; n_k]) : tensor [n_q; n_k] := scale • (tQ × K^T ⊕ Q × tK^T) ⊕ tB.

(** Forward mode: how the output moves along the direction (tQ, tK, tV, tB). *)
Definition toutput {n_q n_k d_k d_v} (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
  (V : tensor [n_k; d_v])
  (B : tensor [n_q; n_k]) (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k]) (tV : tensor [n_k; d_v])
  (tB : tensor [n_q; n_k])
  : tensor [n_q; d_v] :=
  let P := weights M scale Q K B in centered P (tscore scale Q K tQ tK tB) × V ⊕ P × tV.

Section moving.
  Context {n_q n_k d_k d_v : nat} (M : mask) (scale : R).
  Context (q : R -> tensor [n_q; d_k]) (k : R -> tensor [n_k; d_k]) (v : R -> tensor [n_k; d_v])
  (b : R -> tensor [n_q; n_k]).
  Context (t : R) (uQ : tensor [n_q; d_k]) (uK : tensor [n_k; d_k]) (uV : tensor [n_k; d_v]) (uB : tensor [n_q; n_k]).
  Hypothesis (HQ : moves q t uQ) (HK : moves k t uK) (HV : moves v t uV) (HB : moves b t uB).
  Let P := weights M scale (q t) (k t) (b t).
  Let uS := tscore scale (q t) (k t) uQ uK uB.

  Lemma score_moves : moves (s := [n_q; n_k]) (fun u => scores scale (q u) (k u) (b u)) t uS.
  Proof.
    exact (add_moves (fun u => scale • (q u × (k u)^T)) b t _ _
      (scaled_moves scale (fun u => q u × (k u)^T) t _
      (matmul_moves q (fun u => (k u)^T) t _ _ HQ (transpose_moves k t _ HK))) HB).
  Qed.

  Lemma weight_moves : moves (s := [n_q; n_k]) (fun u => weights M scale (q u) (k u) (b u)) t (centered P uS).
  Proof. exact (softmax_moves M (fun u => scores scale (q u) (k u) (b u)) t _ score_moves). Qed.

  Lemma output_moves : moves (s := [n_q; d_v]) (fun u => attention M scale (q u) (k u) (v u) (b u)) t
    (toutput M scale (q t) (k t) (v t) (b t) uQ uK uV uB).
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
    intros H i Hi j Hj. eapply derive_eq; [apply (derive_plus (fun u => x u i j) (fun _ => A i j));
      [exact (H i Hi j Hj)|apply derive_const]|ring].
  Qed.

  Lemma toutput_moves tQ tK tV tB :
    let tS := tscore scale (q t) (k t) tQ tK tB in
    let tuS := scale • (tQ × uK^T ⊕ uQ × tK^T) in
    moves (s := [n_q; d_v]) (fun u => toutput M scale (q u) (k u) (v u) (b u) tQ tK tV tB) t
      ((common P tS uS ⊕ centered P tuS) × v t ⊕ centered P tS × uV ⊕ centered P uS × tV).
  Proof.
    intros tS tuS.
    assert (HS : moves (s := [n_q; n_k]) (fun u => tscore scale (q u) (k u) tQ tK tB) t tuS).
    { apply (add_const_moves tB (fun u => scale • (tQ × (k u)^T ⊕ q u × tK^T))). apply
      (scaled_moves scale (fun u => tQ × (k u)^T ⊕ q u × tK^T)).
      apply (add_moves (fun u => tQ × (k u)^T) (fun u => q u × tK^T)).
      - apply (const_l_moves tQ (fun u => (k u)^T)). now apply transpose_moves.
      - now apply (const_r_moves (tK^T) q). }
    refine (add_moves (fun u => centered (weights M scale (q u) (k u) (b u)) (tscore scale (q u) (k u) tQ tK tB) × v u)
      (fun u => weights M scale (q u) (k u) (b u) × tV) t _ _ _ _).
    - refine (matmul_moves (fun u => centered (weights M scale (q u) (k u) (b u))
      (tscore scale (q u) (k u) tQ tK tB)) v t _ _ _ HV).
      exact (centered_moves M (fun u => scores scale (q u) (k u) (b u)) (fun u => tscore scale (q u) (k u) tQ tK tB) t
        _ _ score_moves HS).
    - exact (const_r_moves tV (fun u => weights M scale (q u) (k u) (b u)) _ weight_moves).
  Qed.

  Context (dO : R -> tensor [n_q; d_v]) (udO : tensor [n_q; d_v]).
  Hypothesis HdO : moves dO t udO.

  Lemma dscore_moves :
    let dP := dO t × (v t)^T in
    let udP := udO × (v t)^T ⊕ dO t × uV^T in
    moves (s := [n_q; n_k]) (fun u => centered (weights M scale (q u) (k u) (b u)) (dO u × (v u)^T)) t
      (common P dP uS ⊕ centered P udP).
  Proof.
    intros dP udP.
    exact (centered_moves M (fun u => scores scale (q u) (k u) (b u)) (fun u => dO u × (v u)^T) t _ _ score_moves
      (matmul_moves dO (fun u => (v u)^T) t _ _ HdO (transpose_moves v t _ HV))).
  Qed.
End moving.

(** The second derivative of a head: its velocity along one direction (tQ, tK, tV, tB), when the inputs move along
    another (uQ, uK, uV, uB). Scores have a second derivative of their own, since Q and K are multiplied. *)
Theorem head_second_derivative n_q n_k d_k d_v (M : mask) scale (Q : R -> tensor [n_q; d_k])
    (K : R -> tensor [n_k; d_k]) (V : R -> tensor [n_k; d_v]) (B : R -> tensor [n_q; n_k]) t (tQ uQ : tensor [n_q; d_k])
    (tK uK : tensor [n_k; d_k]) (tV uV : tensor [n_k; d_v]) (tB uB : tensor [n_q; n_k]) :
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
Proof. intros P tS uS tuS tP uP tuP HQ HK HV HB. exact
  (toutput_moves M scale Q K V B t uQ uK uV uB HQ HK HV HB tQ tK tV tB). Qed.

(** The second derivative of a head is symmetric: first along t, then along u, is first along u, then along t. *)
Theorem head_second_derivative_symmetric n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (tQ uQ : tensor [n_q; d_k])
    (tK uK : tensor [n_k; d_k]) (tV uV : tensor [n_k; d_v]) (tB uB : tensor [n_q; n_k]) :
  let P := weights M scale Q K B in
  let second (tQ uQ : tensor [n_q; d_k]) (tK uK : tensor [n_k; d_k]) (tV uV : tensor [n_k; d_v])
    (tB uB : tensor [n_q; n_k]) :=
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

(** ** How the gradients move: forward mode over the backward pass *)

(** [common] as code computes it: by the product rule, first P moves, then the average. *)
Lemma common_product {m n} M (S X T : tensor [m; n]) i j :
  let P := softmax M S in
  common P X T i j = centered P T i j * (X i j - ∑ k < n, P i k * X i k) - P i j * ∑ k < n, centered P T i k * X i k.
Proof.
  intro P. pose proof (centered_rows M S T i) as H0. fold P in H0. unfold common.
  set (α := ∑ k < n, P i k * X i k). set (β := ∑ k < n, P i k * T i k).
  assert (E : ∑ k < n, centered P T i k * X i k = (∑ k < n, P i k * ((X i k - α) * (T i k - β))) + α * ∑ k < n,
    centered P T i k).
  { rewrite sum_l, <- sum_plus. apply sum_ext; intros k _. unfold centered. fold β. ring. }
  rewrite E, H0. unfold centered. fold β. ring.
Qed.

(** The gradients of a head move, however its inputs and dO do. *)
Theorem eq_orders_gradients n_q n_k d_k d_v (M : mask) scale (Q : R -> tensor [n_q; d_k]) (K : R -> tensor [n_k; d_k])
    (V : R -> tensor [n_k; d_v]) (B : R -> tensor [n_q; n_k]) (dO : R -> tensor [n_q; d_v]) t (tQ : tensor [n_q; d_k])
    (tK : tensor [n_k; d_k]) (tV : tensor [n_k; d_v]) (tB : tensor [n_q; n_k]) (tdO : tensor [n_q; d_v]) :
  let P u := weights M scale (Q u) (K u) (B u) in
  let dP u := dO u × (V u)^T in
  let dS u : tensor [n_q; n_k] := fun i j => P u i j * (dP u i j - ∑ k < n_k, P u i k * dP u i k) in
  let tS := scale • (tQ × (K t)^T ⊕ Q t × tK^T) ⊕ tB in
  let tP : tensor [n_q; n_k] := fun i j => P t i j * (tS i j - ∑ k < n_k, P t i k * tS i k) in
  let tdP := tdO × (V t)^T ⊕ dO t × tV^T in
  let tdS : tensor [n_q; n_k] := fun i j => tP i j * (dP t i j - ∑ k < n_k, P t i k * dP t i k)
    + P t i j * (tdP i j - ∑ k < n_k, (tP i k * dP t i k + P t i k * tdP i k)) in
  moves Q t tQ -> moves K t tK -> moves V t tV -> moves B t tB -> moves dO t tdO ->
  moves dS t tdS /\
  moves (s := [n_q; d_k]) (fun u => scale • (dS u × K u)) t (scale • (tdS × K t ⊕ dS t × tK)) /\
  moves (s := [n_k; d_k]) (fun u => scale • ((dS u)^T × Q u)) t (scale • (tdS^T × Q t ⊕ (dS t)^T × tQ)) /\
  moves (s := [n_k; d_v]) (fun u => (P u)^T × dO u) t (tP^T × dO t ⊕ (P t)^T × tdO).
Proof.
  intros P dP dS tS tP tdP tdS HQ HK HV HB HdO.
  assert (HdS : moves dS t tdS).
  { refine (moves_ext _ _ _ _ _ (fun u => equal_refl _) _
    (dscore_moves M scale Q K V B t tQ tK tV tB HQ HK HV HB dO tdO HdO)).
    intros i _ j _. etransitivity; [exact (f_equal2 Rplus
      (common_product M (scores scale (Q t) (K t) (B t)) (dP t) tS i j)
      (eq_refl (centered (P t) tdP i j)))|].
    change (tP i j * (dP t i j - ∑ k < n_k, P t i k * dP t i k) - P t i j * (∑ k < n_k, tP i k * dP t i k) +
      P t i j * (tdP i j - ∑ k < n_k, P t i k * tdP i k) = tdS i j).
    unfold tdS. rewrite sum_plus. ring. }
  refine (conj HdS (conj _ (conj _ _))).
  - exact (scaled_moves scale (fun u => dS u × K u) t _ (matmul_moves dS K t _ _ HdS HK)).
  - exact (scaled_moves scale (fun u => (dS u)^T × Q u) t _
    (matmul_moves (fun u => (dS u)^T) Q t _ _ (transpose_moves dS t _ HdS) HQ)).
  - exact (matmul_moves (fun u => (P u)^T) dO t _ _
    (transpose_moves P t _ (weight_moves M scale Q K B t tQ tK tB HQ HK HB)) HdO).
Qed.

(** The Hessian times a direction, with no Hessian: along any curve the arrays below are the gradients of the loss at
    every moment, and this is how fast they move. tdO is how the loss's own gradient at the output moves. *)
Theorem eq_orders_gradients__hessian n_q n_k d_k d_v (M : mask) scale (Q : R -> tensor [n_q; d_k])
    (K : R -> tensor [n_k; d_k]) (V : R -> tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : R -> tensor [n_q; d_v]) t (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k]) (tV : tensor [n_k; d_v])
    (tdO : tensor [n_q; d_v]) :
  let P u := weights M scale (Q u) (K u) B in
  let dP u := dO u × (V u)^T in
  let dS u : tensor [n_q; n_k] := fun i j => P u i j * (dP u i j - ∑ k < n_k, P u i k * dP u i k) in
  let dQ u := scale • (dS u × K u) in
  let dK u := scale • ((dS u)^T × Q u) in
  let dV u := (P u)^T × dO u in
  let tS := scale • (tQ × (K t)^T ⊕ Q t × tK^T) in
  let tP : tensor [n_q; n_k] := fun i j => P t i j * (tS i j - ∑ k < n_k, P t i k * tS i k) in
  let tdP := tdO × (V t)^T ⊕ dO t × tV^T in
  let tdS : tensor [n_q; n_k] := fun i j => tP i j * (dP t i j - ∑ k < n_k, P t i k * dP t i k)
    + P t i j * (tdP i j - ∑ k < n_k, (tP i k * dP t i k + P t i k * tdP i k)) in
  (forall u, gradient ℓ (attention M scale (Q u) (K u) (V u) B) (dO u)) ->
  moves Q t tQ -> moves K t tK -> moves V t tV -> moves dO t tdO ->
  (forall u, gradient (fun X => ℓ (attention M scale X (K u) (V u) B)) (Q u) (dQ u) /\
             gradient (fun X => ℓ (attention M scale (Q u) X (V u) B)) (K u) (dK u) /\
             gradient (fun X => ℓ (attention M scale (Q u) (K u) X B)) (V u) (dV u)) /\
  moves dQ t (scale • (tdS × K t ⊕ dS t × tK)) /\
  moves dK t (scale • (tdS^T × Q t ⊕ (dS t)^T × tQ)) /\
  moves dV t (tP^T × dO t ⊕ (P t)^T × tdO).
Proof.
  intros P dP dS dQ dK dV tS tP tdP tdS Hℓ HQ HK HV HdO. split.
  - intro u. exact (conj (gradient_Q M scale (Q u) (K u) (V u) B ℓ (dO u) (Hℓ u))
      (conj (gradient_K M scale (Q u) (K u) (V u) B ℓ (dO u) (Hℓ u))
      (gradient_V M scale (Q u) (K u) (V u) B ℓ (dO u) (Hℓ u)))).
  - assert (ES : scale • (tQ × (K t)^T ⊕ Q t × tK^T) ⊕ zero (s := [n_q; n_k]) = tS).
    { apply functional_extensionality; intro i. apply functional_extensionality; intro j. apply Rplus_0_r. }
    pose proof (eq_orders_gradients n_q n_k d_k d_v M scale Q K V (fun _ => B) dO t tQ tK tV zero tdO HQ HK HV
      (moves_const _ _) HdO) as H.
    cbv zeta in H. rewrite ES in H. exact (proj2 H).
Qed.

(** ** The Hessian is symmetric *)

Lemma toutput_adjoint {n_q n_k d_k d_v} M scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k]) (tV : tensor [n_k; d_v])
    (tB : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dS := centered P (dO × V^T) in
  ⟨dO, toutput M scale Q K V B tQ tK tV tB⟩ = ⟨scale • (dS × K), tQ⟩ + ⟨scale • (dS^T × Q), tK⟩ +
    ⟨P^T × dO, tV⟩ + ⟨dS, tB⟩.
Proof.
  intros P dS. pose proof (tattention_adjoint M scale Q K V B tQ tK tV dO) as H. cbv zeta in H. fold P in
    H. fold dS in H.
  rewrite <- H. unfold toutput, tattention, tscore. fold P. rewrite !dot_add_r, !(dot_matmul_r dO (centered P _)),
    !centered_adjoint.
  fold dS. rewrite dot_add_r. ring.
Qed.

Section hessian.
  Context {n_q n_k d_k d_v : nat} (M : mask) (scale : R) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
  (V : tensor [n_k; d_v]).
  Context (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]).
  Let P := weights M scale Q K B.
  Let dS := centered P (dO × V^T).

  (** How dS, dQ, dK and dV move along (tQ, tK, tV, tB), with dO at rest. *)
  Definition tdS tQ tK tV tB : tensor [n_q; n_k] := common P (dO × V^T) (tscore scale Q K tQ tK tB) ⊕
    centered P (dO × tV^T).
  Definition tdQ tQ tK (tV : tensor [n_k; d_v]) tB : tensor [n_q; d_k] := scale • (tdS tQ tK tV tB × K ⊕ dS × tK).
  Definition tdK tQ tK (tV : tensor [n_k; d_v]) tB : tensor [n_k; d_k] := scale • ((tdS tQ tK tV tB)^T × Q ⊕ dS^T × tQ).
  Definition tdV tQ tK tB : tensor [n_k; d_v] := (centered P (tscore scale Q K tQ tK tB))^T × dO.
  Definition tuO tQ tK tV tB uQ uK uV uB : tensor [n_q; d_v] :=
    (common P (tscore scale Q K tQ tK tB) (tscore scale Q K uQ uK uB) ⊕ centered P
    (scale • (tQ × uK^T ⊕ uQ × tK^T))) × V
    ⊕ centered P (tscore scale Q K tQ tK tB) × uV ⊕ centered P (tscore scale Q K uQ uK uB) × tV.
End hessian.

(** ⟨dO, the output along t⟩ = ⟨dQ, tQ⟩ + …; let both sides move along u. *)
Lemma pairing_at {n_q n_k d_k d_v} M scale (q : R -> tensor [n_q; d_k]) (k : R -> tensor [n_k; d_k])
    (v : R -> tensor [n_k; d_v]) (b : R -> tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) t tQ tK tV tB uQ uK uV uB :
  moves q t uQ -> moves k t uK -> moves v t uV -> moves b t uB ->
  ⟨dO, tuO M scale (q t) (k t) (v t) (b t) tQ tK tV tB uQ uK uV uB⟩ =
    ⟨tdQ M scale (q t) (k t) (v t) (b t) dO uQ uK uV uB, tQ⟩ + ⟨tdK M scale (q t) (k t) (v t) (b t) dO uQ uK uV uB, tK⟩
    + ⟨tdV M scale (q t) (k t) (b t) dO uQ uK uB, tV⟩ + ⟨tdS M scale (q t) (k t) (v t) (b t) dO uQ uK uV uB, tB⟩.
Proof.
  intros HQ HK HV HB.
  pose (dS := fun u => centered (weights M scale (q u) (k u) (b u)) (dO × (v u)^T)).
  assert (H1 : is_derive (fun u => ⟨dO, toutput M scale (q u) (k u) (v u) (b u) tQ tK tV tB⟩) t
    ⟨dO, tuO M scale (q t) (k t) (v t) (b t) tQ tK tV tB uQ uK uV uB⟩).
  { exact (gradient_dot dO _ (fun u => toutput M scale (q u) (k u) (v u) (b u) tQ tK tV tB) t _ eq_refl
      (toutput_moves M scale q k v b t uQ uK uV uB HQ HK HV HB tQ tK tV tB)). }
  assert (HdS : moves (s := [n_q; n_k]) dS t (tdS M scale (q t) (k t) (v t) (b t) dO uQ uK uV uB)).
  { refine (centered_moves M (fun u => scores scale (q u) (k u) (b u)) (fun u => dO × (v u)^T) t _ _
    (score_moves scale q k b t uQ uK uB HQ HK HB) _).
    exact (const_l_moves t dO (fun u => (v u)^T) _ (transpose_moves v t _ HV)). }
  assert (HX : forall s (x : R -> tensor s) tX A, moves x t tX -> is_derive (fun u => ⟨x u, A⟩) t ⟨tX, A⟩).
  { intros s x tX A H. eapply derive_eq; [exact (dot_derive x (fun _ => A) t tX zero H (moves_const _ _))|].
    rewrite dot_zero. ring. }
  assert (H2 : is_derive (fun u => ⟨scale • (dS u × k u), tQ⟩ + ⟨scale • ((dS u)^T × q u), tK⟩
      + ⟨(weights M scale (q u) (k u) (b u))^T × dO, tV⟩ + ⟨dS u, tB⟩) t
    (⟨tdQ M scale (q t) (k t) (v t) (b t) dO uQ uK uV uB, tQ⟩ + ⟨tdK M scale (q t) (k t) (v t) (b t) dO uQ uK uV uB, tK⟩
    + ⟨tdV M scale (q t) (k t) (b t) dO uQ uK uB, tV⟩ + ⟨tdS M scale (q t) (k t) (v t) (b t) dO uQ uK uV uB, tB⟩)).
  { apply (derive_plus (fun u => ⟨scale • (dS u × k u), tQ⟩ + ⟨scale • ((dS u)^T × q u), tK⟩ +
    ⟨(weights M scale (q u) (k u) (b u))^T × dO, tV⟩) (fun u => ⟨dS u, tB⟩)).
    apply (derive_plus (fun u => ⟨scale • (dS u × k u), tQ⟩ + ⟨scale • ((dS u)^T × q u), tK⟩)
      (fun u => ⟨(weights M scale (q u) (k u) (b u))^T × dO, tV⟩)).
    apply (derive_plus (fun u => ⟨scale • (dS u × k u), tQ⟩) (fun u => ⟨scale • ((dS u)^T × q u), tK⟩)).
    - apply (HX [n_q; d_k] (fun u => scale • (dS u × k u))).
      exact (scaled_moves scale (fun u => dS u × k u) t _ (matmul_moves dS k t _ _ HdS HK)).
    - apply (HX [n_k; d_k] (fun u => scale • ((dS u)^T × q u))).
      exact (scaled_moves scale (fun u => (dS u)^T × q u) t _
        (matmul_moves (fun u => (dS u)^T) q t _ _ (transpose_moves dS t _ HdS) HQ)).
    - apply (HX [n_k; d_v] (fun u => (weights M scale (q u) (k u) (b u))^T × dO)).
      exact (const_r_moves t dO (fun u => (weights M scale (q u) (k u) (b u))^T) _
        (transpose_moves (fun u => weights M scale (q u) (k u) (b u)) t _
        (weight_moves M scale q k b t uQ uK uB HQ HK HB))).
    - exact (HX [n_q; n_k] dS _ tB HdS). }
  assert (H3 := is_derive_ext _ _ t _ (fun u => toutput_adjoint M scale (q u) (k u) (v u) (b u) tQ tK tV tB dO) H1).
  apply is_derive_unique in H2, H3. rewrite <- H3. exact H2.
Qed.

Lemma pairing {n_q n_k d_k d_v} M scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) tQ tK tV tB uQ uK uV uB :
  ⟨dO, tuO M scale Q K V B tQ tK tV tB uQ uK uV uB⟩ =
    ⟨tdQ M scale Q K V B dO uQ uK uV uB, tQ⟩ + ⟨tdK M scale Q K V B dO uQ uK uV uB, tK⟩
    + ⟨tdV M scale Q K B dO uQ uK uB, tV⟩ + ⟨tdS M scale Q K V B dO uQ uK uV uB, tB⟩.
Proof.
  pose proof (pairing_at M scale (fun u => along Q u uQ) (fun u => along K u uK) (fun u => along V u uV)
    (fun u => along B u uB) dO 0
    tQ tK tV tB uQ uK uV uB (moves_along Q uQ 0) (moves_along K uK 0) (moves_along V uV 0) (moves_along B uB 0)) as H.
  cbv beta in H. rewrite !along_0 in H. exact H.
Qed.

Lemma pairing_symmetric {n_q n_k d_k d_v} M scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) tQ tK tV tB uQ uK uV uB :
  ⟨dO, tuO M scale Q K V B tQ tK tV tB uQ uK uV uB⟩ = ⟨dO, tuO M scale Q K V B uQ uK uV uB tQ tK tV tB⟩.
Proof.
  apply dot_ext; [apply equal_refl|].
  exact (head_second_derivative_symmetric n_q n_k d_k d_v M scale Q K V B tQ uQ tK uK tV uV tB uB).
Qed.

(** The Hessian of ⟨dO, O⟩ is symmetric: its product with t, paired with u, is its product with u, paired with t. tdS,
    tdQ, tdK and tdV say how the gradients of scores, queries, keys and values move along a direction. *)
Theorem eq_orders_double__symmetric n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) (tQ uQ : tensor [n_q; d_k])
    (tK uK : tensor [n_k; d_k]) (tV uV : tensor [n_k; d_v]) (tB uB : tensor [n_q; n_k]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := centered P dP in
  let tS (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k]) tB := scale • (tQ × K^T ⊕ Q × tK^T) ⊕ tB in
  let tdS tQ tK tV tB : tensor [n_q; n_k] := common P dP (tS tQ tK tB) ⊕ centered P (dO × tV^T) in
  let tdQ tQ tK (tV : tensor [n_k; d_v]) tB := scale • (tdS tQ tK tV tB × K ⊕ dS × tK) in
  let tdK tQ tK (tV : tensor [n_k; d_v]) tB := scale • ((tdS tQ tK tV tB)^T × Q ⊕ dS^T × tQ) in
  let tdV tQ tK tB := (centered P (tS tQ tK tB))^T × dO in
  ⟨tdQ tQ tK tV tB, uQ⟩ + ⟨tdK tQ tK tV tB, uK⟩ + ⟨tdV tQ tK tB, uV⟩ + ⟨tdS tQ tK tV tB, uB⟩ =
  ⟨tdQ uQ uK uV uB, tQ⟩ + ⟨tdK uQ uK uV uB, tK⟩ + ⟨tdV uQ uK uB, tV⟩ + ⟨tdS uQ uK uV uB, tB⟩.
Proof.
  intros P dP dS tS tdS' tdQ' tdK' tdV'.
  pose proof (pairing M scale Q K V B dO uQ uK uV uB tQ tK tV tB) as H1.
  pose proof (pairing M scale Q K V B dO tQ tK tV tB uQ uK uV uB) as H2.
  rewrite (pairing_symmetric M scale Q K V B dO uQ uK uV uB tQ tK tV tB) in H1. rewrite H2 in H1. symmetry. exact H1.
Qed.

(** The backward pass of the backward pass: gQ, gK and gV arrive at dQ, dK and dV. Then dO gets what forward mode
    makes of them, and Q, K and V get the Hessian's product with them. *)
Theorem eq_orders_double n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) (gQ : tensor [n_q; d_k])
    (gK : tensor [n_k; d_k]) (gV : tensor [n_k; d_v]) :
  let G (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) :=
    let P := weights M scale Q K B in
    let dS := centered P (dO × V^T) in
    ⟨scale • (dS × K), gQ⟩ + ⟨scale • (dS^T × Q), gK⟩ + ⟨P^T × dO, gV⟩ in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := centered P dP in
  let gS := scale • (gQ × K^T ⊕ Q × gK^T) in
  let gP := centered P gS in
  let gdS := common P dP gS ⊕ centered P (dO × gV^T) in
  gradient (fun dO => G Q K V dO) dO (gP × V ⊕ P × gV) /\
  gradient (fun Q => G Q K V dO) Q (scale • (gdS × K ⊕ dS × gK)) /\
  gradient (fun K => G Q K V dO) K (scale • (gdS^T × Q ⊕ dS^T × gQ)) /\
  gradient (fun V => G Q K V dO) V (gP^T × dO).
Proof.
  intros G P dP dS gS gP gdS.
  assert (ES : scale • (gQ × K^T ⊕ Q × gK^T) ⊕ zero (s := [n_q; n_k]) = gS).
  { apply functional_extensionality; intro i. apply functional_extensionality; intro j. apply Rplus_0_r. }
  assert (EG : forall Q K V dO, G Q K V dO = ⟨dO, toutput M scale Q K V B gQ gK gV zero⟩).
  { intros Q' K' V' dO'. rewrite toutput_adjoint, dot_zero. unfold G. ring. }
  assert (J : forall q k v t uQ uK uV, q t = Q -> k t = K -> v t = V -> moves q t uQ -> moves k t uK -> moves v t uV ->
    is_derive (fun u => G (q u) (k u) (v u) dO) t
      (⟨scale • (gdS × K ⊕ dS × gK), uQ⟩ + ⟨scale • (gdS^T × Q ⊕ dS^T × gQ), uK⟩ + ⟨gP^T × dO, uV⟩)).
  { intros q k v t uQ uK uV Eq Ek Ev HQ HK HV.
    refine (is_derive_ext (fun u => ⟨dO, toutput M scale (q u) (k u) (v u) B gQ gK gV zero⟩) _ _ _
      (fun u => eq_sym (EG (q u) (k u) (v u) dO)) _).
    eapply derive_eq.
    - exact (gradient_dot dO _ (fun u => toutput M scale (q u) (k u) (v u) B gQ gK gV zero) t _ eq_refl
        (toutput_moves M scale q k v (fun _ => B) t uQ uK uV zero HQ HK HV (moves_const _ _) gQ gK gV zero)).
    - cbv beta. rewrite Eq, Ek, Ev.
      etransitivity; [exact (pairing_symmetric M scale Q K V B dO gQ gK gV zero uQ uK uV zero)|].
      rewrite pairing, dot_zero, Rplus_0_r. unfold tdQ, tdK, tdV, tdS, tscore. rewrite ES. reflexivity. }
  refine (conj _ (conj _ (conj _ _))); intros x t tX Hx Ht.
  - refine (is_derive_ext (fun u => ⟨x u, toutput M scale Q K V B gQ gK gV zero⟩) _ _ _
    (fun u => eq_sym (EG Q K V (x u))) _).
    eapply derive_eq; [exact (dot_derive x (fun _ => toutput M scale Q K V B gQ gK gV zero) t tX zero Ht
      (moves_const _ _))|].
    rewrite dot_zero, Rplus_0_r, dot_comm. unfold toutput, tscore. rewrite ES. reflexivity.
  - refine (derive_eq _ _ _ _ (J x (fun _ => K) (fun _ => V) t tX zero zero Hx eq_refl eq_refl Ht (moves_const _ _)
    (moves_const _ _)) _).
    rewrite !dot_zero. ring.
  - refine (derive_eq _ _ _ _ (J (fun _ => Q) x (fun _ => V) t zero tX zero eq_refl Hx eq_refl (moves_const _ _) Ht
    (moves_const _ _)) _).
    rewrite !dot_zero. ring.
  - refine (derive_eq _ _ _ _ (J (fun _ => Q) (fun _ => K) x t zero zero tX eq_refl eq_refl Hx (moves_const _ _)
    (moves_const _ _) Ht) _).
    rewrite !dot_zero. ring.
Qed.
