(** * A step put into attention (chapter 9)

    A variant changes one step of the chain, at the scores or at the weights. What stands before it and behind it keeps
    its formulas: here once, for any step. The other files of chapter 9 put their own step in. *)

From attnbook Require Export head.

(** Two ways to write one loss have one gradient. *)
Lemma gradient_same {s} (ℓ ℓ' : tensor s -> R) (X dX : tensor s) :
  (forall X, ℓ X = ℓ' X) -> gradient ℓ X dX -> gradient ℓ' X dX.
Proof. intros H Hℓ x t tX Hx Ht. apply (is_derive_ext (fun u => ℓ (x u))); [intro; apply H|now apply Hℓ]. Qed.

(** ** A function of each entry alone *)

Lemma entrywise {m n} (φ : nat -> nat -> R -> R) (dφ : tensor [m; n]) (X : tensor [m; n]) (ℓ : tensor [m; n] -> R) dY :
  (forall i j, (i < m)%nat -> (j < n)%nat -> is_derive (φ i j) (X i j) (dφ i j)) ->
  gradient ℓ (fun i j => φ i j (X i j)) dY ->
  gradient (fun X : tensor [m; n] => ℓ (fun i j => φ i j (X i j))) X (fun i j => dφ i j * dY i j).
Proof.
  intros Hφ. apply (backward (s := [m; n]) (r := [m; n]) (fun (X : tensor [m; n]) i j => φ i j (X i j)) X
    (fun (tX : tensor [m; n]) i j => dφ i j * tX i j) ℓ dY).
  - intros x t tX Hx Ht i Hi j Hj. apply (derive_after (φ i j) (fun u => x u i j));
      [rewrite Hx; now apply Hφ|now apply Ht].
  - intro tX. simpl. apply sum_ext; intros. apply sum_ext; intros. ring.
Qed.

(** ** The scores *)

Section scores_back.
  Context {n_q n_k d_k : nat} (scale : R) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (B : tensor [n_q; n_k]).
  Context (ℓ : tensor [n_q; n_k] -> R) (dS : tensor [n_q; n_k]).
  Hypothesis Hℓ : gradient ℓ (scores scale Q K B) dS.

  Lemma scores_derive (c : R -> R) (q : R -> tensor [n_q; d_k]) (k : R -> tensor [n_k; d_k])
      (b : R -> tensor [n_q; n_k])
      t tc tQ tK tB :
    is_derive c t tc -> moves q t tQ -> moves k t tK -> moves b t tB -> c t = scale -> q t = Q -> k t = K -> b t = B ->
    is_derive (fun u => ℓ (scores (c u) (q u) (k u) (b u))) t
      (⟨dS, Q × K^T⟩ * tc + ⟨scale • (dS × K), tQ⟩ + ⟨scale • (dS^T × Q), tK⟩ + ⟨dS, tB⟩).
  Proof.
    intros Hc Hq Hk Hb <- <- <- <-. rewrite <- (scores_adjoint c q k t tc tQ tK tB).
    apply (Hℓ (fun u => scores (c u) (q u) (k u) (b u))); [reflexivity|now apply scores_moves].
  Qed.

  Lemma scores_Q : gradient (fun Q => ℓ (scores scale Q K B)) Q (scale • (dS × K)).
  Proof.
    intros x t tX Hx Ht. eapply derive_eq.
    - exact (scores_derive (fun _ => scale) x (fun _ => K) (fun _ => B) t 0 tX zero zero (derive_const _ _) Ht
        (moves_const _ _) (moves_const _ _) eq_refl Hx eq_refl eq_refl).
    - rewrite !dot_zero. ring.
  Qed.

  Lemma scores_K : gradient (fun K => ℓ (scores scale Q K B)) K (scale • (dS^T × Q)).
  Proof.
    intros x t tX Hx Ht. eapply derive_eq.
    - exact (scores_derive (fun _ => scale) (fun _ => Q) x (fun _ => B) t 0 zero tX zero (derive_const _ _)
        (moves_const _ _)
        Ht (moves_const _ _) eq_refl eq_refl Hx eq_refl).
    - rewrite !dot_zero. ring.
  Qed.

  Lemma scores_B : gradient (fun B => ℓ (scores scale Q K B)) B dS.
  Proof.
    intros x t tX Hx Ht. eapply derive_eq.
    - exact (scores_derive (fun _ => scale) (fun _ => Q) (fun _ => K) x t 0 zero zero tX (derive_const _ _)
        (moves_const _ _)
        (moves_const _ _) Ht eq_refl eq_refl eq_refl Hx).
    - rewrite !dot_zero. ring.
  Qed.

  Lemma scores_scale : gradient (s := []) (fun scale => ℓ (scores scale Q K B)) scale ⟨dS, Q × K^T⟩.
  Proof.
    intros x t tX Hx Ht. eapply derive_eq.
    - exact (scores_derive x (fun _ => Q) (fun _ => K) (fun _ => B) t tX zero zero zero Ht (moves_const _ _)
        (moves_const _ _) (moves_const _ _) Hx eq_refl eq_refl eq_refl).
    - rewrite !dot_zero. simpl. ring.
  Qed.
End scores_back.

(** ** From a gradient at the weights to one at the scores, and the sums of rows *)

Lemma softmax_back {m n} (M : mask) (S : tensor [m; n]) (ℓ : tensor [m; n] -> R) dP :
  gradient ℓ (softmax M S) dP -> gradient (fun S => ℓ (softmax M S)) S (centered (softmax M S) dP).
Proof. exact (eq_softmax_vjp m n M S ℓ dP). Qed.

Lemma product_l {m n p} (A : tensor [m; n]) (B : tensor [n; p]) (ℓ : tensor [m; p] -> R) dY :
  gradient ℓ (A × B) dY -> gradient (fun A => ℓ (A × B)) A (dY × B^T).
Proof. intro H. exact (proj1 (eq_matmul_vjp m n p A B ℓ dY H)). Qed.

Lemma product_r {m n p} (A : tensor [m; n]) (B : tensor [n; p]) (ℓ : tensor [m; p] -> R) dY :
  gradient ℓ (A × B) dY -> gradient (fun B => ℓ (A × B)) B (A^T × dY).
Proof. intro H. exact (proj2 (eq_matmul_vjp m n p A B ℓ dY H)). Qed.

(** Each row of dS sums to 0, and the rows of dead queries, too. *)
Lemma centered_sums_to_0 {m n} (M : mask) (S X : tensor [m; n]) i : ∑ j < n, centered (softmax M S) X i j = 0.
Proof.
  unfold centered. destruct (live_or_dead M n i) as [H|H].
  - apply (softmax_sum M S) in H. set (a := ∑ k < n, softmax M S i k * X i k).
    transitivity (∑ j < n, (softmax M S i j * X i j - softmax M S i j * a)); [apply sum_ext; intros; ring|].
    rewrite sum_minus, <- (sum_r a n (fun j => softmax M S i j)), H. unfold a. ring.
  - apply sum_0. intros j Hj. rewrite softmax_forbidden by auto. ring.
Qed.

(** Where the mask forbids, dS is 0. *)
Lemma softmax_live_pos {m n} (M : mask) (S : tensor [m; n]) i j : (j < n)%nat -> M i j = true -> 0 < softmax M S i j.
Proof.
  intros Hj HM. unfold softmax. apply Rdiv_lt_0_compat; [|now apply (Z_pos M S i j)]. unfold E. rewrite HM.
  apply exp_pos.
Qed.

Lemma centered_forbidden {m n} (M : mask) (S X : tensor [m; n]) i j : M i j = false -> centered (softmax M S) X i j = 0.
Proof. intro H. unfold centered. rewrite softmax_forbidden by exact H. ring. Qed.

(** The average of dP in a row is dO · O: so every variant that ends in O = P V has one D. *)
Lemma average_is_D {m n p} (P : tensor [m; n]) (V : tensor [n; p]) (dO : tensor [m; p]) i :
  ∑ k < n, P i k * (dO × V^T) i k = ∑ l < p, dO i l * (P × V) i l.
Proof.
  unfold matmul, transpose.
  transitivity (∑ k < n, ∑ l < p, P i k * (dO i l * V k l)); [apply sum_ext; intros; now rewrite sum_l|].
  rewrite sum_swap. apply sum_ext; intros. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

(** ** The theorem of the chain *)

(** A step from scores to weights is exchanged for any other, W, whose way back is known. Then only this step changes:
    dV, dQ, dK, dB and the gradient of the scale keep their formulas, with the new weights and the new dS. *)
Theorem around_any_step n_q n_k d_k d_v scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (W back : tensor [n_q; n_k] -> tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let S := scores scale Q K B in
  let dS := back (dO × V^T) in
  (forall (ℓ : tensor [n_q; n_k] -> R) dP, gradient ℓ (W S) dP -> gradient (fun S => ℓ (W S)) S (back dP)) ->
  gradient ℓ (W S × V) dO ->
  gradient (fun Q => ℓ (W (scores scale Q K B) × V)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (W (scores scale Q K B) × V)) K (scale • (dS^T × Q)) /\
  gradient (fun V => ℓ (W S × V)) V ((W S)^T × dO) /\
  gradient (fun B => ℓ (W (scores scale Q K B) × V)) B dS /\
  gradient (s := []) (fun scale => ℓ (W (scores scale Q K B) × V)) scale ⟨dS, Q × K^T⟩.
Proof.
  intros S dS HW Hℓ.
  pose proof (HW (fun P => ℓ (P × V)) (dO × V^T) (product_l (W S) V ℓ dO Hℓ)) as H. fold dS in H.
  repeat apply conj.
  - exact (scores_Q scale Q K B (fun S => ℓ (W S × V)) dS H).
  - exact (scores_K scale Q K B (fun S => ℓ (W S × V)) dS H).
  - exact (product_r (W S) V ℓ dO Hℓ).
  - exact (scores_B scale Q K B (fun S => ℓ (W S × V)) dS H).
  - exact (scores_scale scale Q K B (fun S => ℓ (W S × V)) dS H).
Qed.
