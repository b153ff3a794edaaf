(** * Dropout (chapter 9)

    The table [kept] is given: 1 where a weight is kept, 0 where it is dropped. Nothing below needs more of it than
    that it is a table of numbers. *)

From attnbook Require Export steps.

(** The weights after dropout. *)
Definition dropped {m n} (kept : tensor [m; n]) (p_drop : R) (P : tensor [m; n]) : tensor [m; n] :=
  fun i j => kept i j * P i j / (1 - p_drop).

(** At the step: each weight was multiplied by a number, and so is its gradient, by the same one. *)
Theorem eq_op_dropout n_q n_k (kept : tensor [n_q; n_k]) p_drop (P : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dP' : tensor [n_q; n_k]) :
  p_drop <> 1 ->
  gradient ℓ (fun i j => kept i j * P i j / (1 - p_drop)) dP' ->
  gradient (fun P : tensor [n_q; n_k] => ℓ (fun i j => kept i j * P i j / (1 - p_drop))) P
    (fun i j => kept i j * dP' i j / (1 - p_drop)).
Proof.
  intros _ H. refine (gradient_ext (s := [n_q; n_k]) _ _ (fun i j => kept i j / (1 - p_drop) * dP' i j) _ _ _).
  - intros i _ j _. simpl. unfold Rdiv. ring.
  - refine (entrywise (fun i j x => kept i j * x / (1 - p_drop)) (fun i j => kept i j / (1 - p_drop)) P ℓ dP' _ H).
    intros i j _ _. eapply derive_eq.
    + apply (derive_mult (fun x => kept i j * x) (fun _ => / (1 - p_drop))); [|apply derive_const].
      apply (derive_scale (kept i j) (fun x => x)). apply is_derive_Reals, derivable_pt_lim_id.
    + cbv beta. unfold Rdiv. ring.
Qed.

Lemma dropout_back {n_q n_k} (M : mask) (kept : tensor [n_q; n_k]) p_drop (S : tensor [n_q; n_k]) ℓ dP' :
  p_drop <> 1 ->
  gradient ℓ (dropped kept p_drop (softmax M S)) dP' ->
  gradient (fun S => ℓ (dropped kept p_drop (softmax M S))) S (centered (softmax M S) (dropped kept p_drop dP')).
Proof.
  intros Hp H. apply (softmax_back M S (fun P => ℓ (dropped kept p_drop P)) (dropped kept p_drop dP')).
  exact (eq_op_dropout n_q n_k kept p_drop (softmax M S) ℓ dP' Hp H).
Qed.

(** In the whole head, from dO back: V meets the dropped weights P', the derivative of softmax has the undropped P, and
    only dP is dropped, with the same table. *)
Theorem eq_var_dropout_vjp n_q n_k d_k d_v (M : mask) (kept : tensor [n_q; n_k]) p_drop scale (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let P' := dropped kept p_drop P in
  let dP' := dO × V^T in
  let dP := fun i j => kept i j * dP' i j / (1 - p_drop) in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  p_drop <> 1 ->
  gradient ℓ (P' × V) dO ->
  gradient (fun V => ℓ (P' × V)) V (P'^T × dO) /\
  gradient (fun P' => ℓ (P' × V)) P' dP' /\
  gradient (fun B => ℓ (dropped kept p_drop (weights M scale Q K B) × V)) B dS /\
  gradient (fun Q => ℓ (dropped kept p_drop (weights M scale Q K B) × V)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (dropped kept p_drop (weights M scale Q K B) × V)) K (scale • (dS^T × Q)).
Proof.
  intros P P' dP' dP dS Hp H.
  set (W := fun S : tensor [n_q; n_k] => dropped kept p_drop (softmax M S)).
  set (back := fun dP' : tensor [n_q; n_k] => centered P (dropped kept p_drop dP')).
  pose proof (around_any_step n_q n_k d_k d_v scale Q K V B W back ℓ dO) as HW. cbv zeta in HW.
  destruct HW as [HQ [HK [HV [HB _]]]]; [|exact H|].
  - intros ℓ' dP'' H'. exact (dropout_back M kept p_drop (scores scale Q K B) ℓ' dP'' Hp H').
  - exact (conj HV (conj (product_l P' V ℓ dO H) (conj HB (conj HQ HK)))).
Qed.

(** D needs no new formula: the average of dP with P, that of dP' with P', and dO · O are one number. *)
Theorem eq_var_dropout_D n_q n_k d_v (kept : tensor [n_q; n_k]) p_drop (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v])
    (dO : tensor [n_q; d_v]) :
  let P' := fun i j => kept i j * P i j / (1 - p_drop) in
  let O := P' × V in
  let dP' := dO × V^T in
  let dP := fun i j => kept i j * dP' i j / (1 - p_drop) in
  p_drop <> 1 ->
  equal (rowsum (P ∘ dP)) (rowsum (P' ∘ dP')) /\ equal (rowsum (P' ∘ dP')) (rowsum (dO ∘ O)).
Proof.
  intros P' O dP' dP _. split; intros i _.
  - simpl. apply sum_ext; intros j _. unfold hadamard, P', dP, Rdiv. ring.
  - exact (average_is_D P' V dO i).
Qed.

(** With the chance p_drop a weight is dropped, else divided by 1 − p_drop: its mean is the weight. *)
Theorem mean_of_dropout p_drop P :
  p_drop <> 1 -> p_drop * (0 * P / (1 - p_drop)) + (1 - p_drop) * (1 * P / (1 - p_drop)) = P.
Proof. intro H. field. lra. Qed.
