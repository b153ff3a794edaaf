(** * A scale that learns, and a softcap (chapter 9)

    Both change each score alone, before the softmax. *)

From attnbook Require Export steps.

(** ** A scale that learns *)

(** S' = α S, at the step alone: dS = α dS', and dα is the sum of S dS' over the table. *)
Theorem eq_var_logit_scale n_q n_k (α : R) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dS' : tensor [n_q; n_k]) :
  gradient ℓ (α • S) dS' ->
  gradient (fun S => ℓ (α • S)) S (α • dS') /\
  gradient (s := []) (fun α => ℓ (α • S)) α (∑ i < n_q, ∑ j < n_k, S i j * dS' i j).
Proof.
  intro H. split.
  - refine (backward (fun S => α • S) S (fun tS => α • tS) ℓ dS' _ _ _ H).
    + intros x t tX _ Ht. now apply scaled_moves.
    + intro tX. now rewrite dot_scaled_r, dot_scaled_l.
  - refine (backward (s := []) (fun α => α • S) α (fun tα => tα • S) ℓ dS' _ _ _ H).
    + intros x t tX _ Ht i Hi j Hj. simpl in Ht. unfold scaled.
      eapply derive_eq; [apply (derive_mult x); [exact Ht|apply derive_const]|cbv beta; ring].
    + intro tX. rewrite dot_scaled_r. simpl. rewrite Rmult_comm. f_equal. apply sum_ext; intros. apply sum_ext;
        intros. ring.
Qed.

(** In the whole head, from dO back: the softmax of α S gives dS', α gets dα, and α dS' takes the place of dS. *)
Theorem eq_var_logit_scale__head n_q n_k d_k d_v (M : mask) α scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let S := scores scale Q K B in
  let P := softmax M (α • S) in
  let dP := dO × V^T in
  let dS' := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let dS := fun i j => α * dS' i j in
  gradient ℓ (P × V) dO ->
  gradient (s := []) (fun α => ℓ (softmax M (α • S) × V)) α (∑ i < n_q, ∑ j < n_k, S i j * dS' i j) /\
  gradient (fun Q => ℓ (softmax M (α • scores scale Q K B) × V)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (softmax M (α • scores scale Q K B) × V)) K (scale • (dS^T × Q)) /\
  gradient (fun V => ℓ (P × V)) V (P^T × dO) /\
  gradient (fun B => ℓ (softmax M (α • scores scale Q K B) × V)) B dS.
Proof.
  intros S P dP dS' dS H. split.
  - refine (proj2 (eq_var_logit_scale n_q n_k α S (fun S' => ℓ (softmax M S' × V)) dS' _)).
    exact (softmax_back M (α • S) (fun P => ℓ (P × V)) dP (product_l P V ℓ dO H)).
  - set (W := fun S : tensor [n_q; n_k] => softmax M (α • S)).
    set (back := fun dP : tensor [n_q; n_k] => α • centered (softmax M (α • S)) dP).
    pose proof (around_any_step n_q n_k d_k d_v scale Q K V B W back ℓ dO) as HW. cbv zeta in HW.
    destruct HW as [HQ [HK [HV [HB _]]]]; [|exact H|exact (conj HQ (conj HK (conj HV HB)))].
    intros ℓ' dP' H'. refine (proj1 (eq_var_logit_scale n_q n_k α S (fun S' => ℓ' (softmax M S')) _ _)).
    exact (softmax_back M (α • S) ℓ' dP' H').
Qed.

(** Where scores are scaled products and nothing else, α dα is the inner product of Q and dQ. *)
Theorem eq_var_logit_scale__free n_q n_k d_k α scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (dS' : tensor [n_q; n_k]) :
  let S := scale • (Q × K^T) in
  let dS := fun i j => α * dS' i j in
  α * (∑ i < n_q, ∑ j < n_k, S i j * dS' i j) = ⟨Q, scale • (dS × K)⟩.
Proof.
  intros S dS. change (α * ⟨S, dS'⟩ = ⟨Q, scale • ((α • dS') × K)⟩). unfold S.
  assert (H : ⟨α • dS', Q × K^T⟩ = ⟨(α • dS') × K, Q⟩) by exact (dot_matmul_r (α • dS') Q (K^T)).
  rewrite dot_scaled_r, dot_scaled_l, (dot_comm Q), <- H, dot_scaled_l, (dot_comm dS'). ring.
Qed.

(** Where log α is learned in place of α, its gradient is α dα. *)
Theorem logarithm_of_the_scale (ℓ : R -> R) (a dα : R) :
  gradient (s := []) ℓ (exp a) dα -> gradient (s := []) (fun a => ℓ (exp a)) a (exp a * dα).
Proof.
  intros H x t tX Hx Ht. simpl in *. eapply derive_eq; [apply (H (fun u => exp (x u)))|].
  - now rewrite Hx.
  - exact (derive_exp x t tX Ht).
  - simpl. rewrite Hx. ring.
Qed.

(** ** The softcap *)

(** The derivative of tanh is 1 − tanh². *)
Theorem eq_op_softcap__tanh (x : R) : is_derive tanh x (1 - tanh x ^ 2).
Proof.
  assert (Hc : cosh x <> 0) by (unfold cosh; pose proof (exp_pos x); pose proof (exp_pos (- x)); lra).
  eapply derive_eq.
  - apply (derive_div sinh cosh x (cosh x) (sinh x)); [| |exact Hc];
      apply is_derive_Reals; [apply derivable_pt_lim_sinh|apply derivable_pt_lim_cosh].
  - unfold tanh. field. exact Hc.
Qed.

Definition softcap {m n} (c : R) (S : tensor [m; n]) : tensor [m; n] := fun i j => c * tanh (S i j / c).

Lemma softcap_derive c x : c <> 0 -> is_derive (fun x => c * tanh (x / c)) x (1 - (c * tanh (x / c) / c) ^ 2).
Proof.
  intro Hc. eapply derive_eq.
  - apply (derive_scale c (fun x => tanh (x / c))).
    apply (derive_after tanh (fun x => x / c) x (1 * / c)); [apply eq_op_softcap__tanh|].
    eapply derive_eq; [apply (derive_mult (fun x => x) (fun _ => / c));
      [apply is_derive_Reals, derivable_pt_lim_id|apply derive_const]|].
    ring.
  - field. exact Hc.
Qed.

(** At the step: S' = c tanh(S / c) takes dS' to (1 − (S'/c)²) dS', for any cap but 0. *)
Theorem eq_op_softcap n_q n_k c (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R) (dS' : tensor [n_q; n_k]) :
  let S' := softcap c S in
  c <> 0 ->
  gradient ℓ S' dS' ->
  gradient (fun S => ℓ (softcap c S)) S (fun i j => (1 - (S' i j / c) ^ 2) * dS' i j).
Proof.
  intros S' Hc. apply (entrywise (fun _ _ x => c * tanh (x / c)) (fun i j => 1 - (S' i j / c) ^ 2) S ℓ dS').
  intros i j _ _. now apply softcap_derive.
Qed.

(** Forward mode: when the scores move by tS, the capped ones move by (1 − (S'/c)²) tS. *)
Theorem eq_op_softcap__jvp n_q n_k c (S : R -> tensor [n_q; n_k]) t (tS : tensor [n_q; n_k]) :
  let S' := softcap c (S t) in
  c <> 0 ->
  moves S t tS ->
  moves (s := [n_q; n_k]) (fun u => softcap c (S u)) t (fun i j => (1 - (S' i j / c) ^ 2) * tS i j).
Proof.
  intros S' Hc H i Hi j Hj. unfold softcap.
  apply (derive_after (fun x => c * tanh (x / c)) (fun u => S u i j)); [now apply softcap_derive|now apply H].
Qed.

(** In the whole head, from dO back: after the mask and the softmax the cap's factor, then the plain formulas. *)
Theorem eq_op_softcap__head n_q n_k d_k d_v (M : mask) c scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let S' := softcap c (scores scale Q K B) in
  let P := softmax M S' in
  let dP := dO × V^T in
  let dS' := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let dS := fun i j => (1 - (S' i j / c) ^ 2) * dS' i j in
  c <> 0 ->
  gradient ℓ (P × V) dO ->
  gradient (fun Q => ℓ (softmax M (softcap c (scores scale Q K B)) × V)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (softmax M (softcap c (scores scale Q K B)) × V)) K (scale • (dS^T × Q)) /\
  gradient (fun V => ℓ (P × V)) V (P^T × dO) /\
  gradient (fun B => ℓ (softmax M (softcap c (scores scale Q K B)) × V)) B dS.
Proof.
  intros S' P dP dS' dS Hc H.
  set (W := fun S : tensor [n_q; n_k] => softmax M (softcap c S)).
  set (back := fun (dP : tensor [n_q; n_k]) i j => (1 - (S' i j / c) ^ 2) * centered P dP i j).
  pose proof (around_any_step n_q n_k d_k d_v scale Q K V B W back ℓ dO) as HW. cbv zeta in HW.
  destruct HW as [HQ [HK [HV [HB _]]]]; [|exact H|exact (conj HQ (conj HK (conj HV HB)))].
  intros ℓ' dP' H'.
  apply (eq_op_softcap n_q n_k c (scores scale Q K B) (fun S' => ℓ' (softmax M S')) (centered P dP') Hc).
  exact (softmax_back M S' ℓ' dP' H').
Qed.

Lemma tanh_square x : tanh x ^ 2 < 1.
Proof.
  unfold tanh. assert (Hc : 0 < cosh x) by (unfold cosh; pose proof (exp_pos x); pose proof (exp_pos (- x)); lra).
  replace ((sinh x / cosh x) ^ 2) with (1 - / (cosh x * cosh x)).
  - pose proof (Rinv_0_lt_compat (cosh x * cosh x) ltac:(nra)). lra.
  - assert (H : cosh x * cosh x - sinh x * sinh x = 1).
    { unfold cosh, sinh. replace ((exp x + exp (- x)) / 2 * ((exp x + exp (- x)) / 2) - (exp x - exp (- x)) / 2
        * ((exp x - exp (- x)) / 2))
        with (exp x * exp (- x)) by field. rewrite <- exp_plus, Rplus_opp_r. apply exp_0. }
    replace (sinh x / cosh x) with (sinh x * / cosh x) by reflexivity. field_simplify_eq; [|lra]. nra.
Qed.

(** The cap keeps every score strictly between −c and c, and makes no gradient larger. *)
Theorem softcap_keeps_and_shrinks (c s ds' : R) :
  0 < c ->
  let s' := c * tanh (s / c) in
  - c < s' < c /\ Rabs ((1 - (s' / c) ^ 2) * ds') <= Rabs ds'.
Proof.
  intros Hc s'. assert (H := tanh_square (s / c)). unfold s'.
  replace (c * tanh (s / c) / c) with (tanh (s / c)) by (field; lra).
  set (y := tanh (s / c)) in *. split.
  - assert (-1 < y < 1) by nra. nra.
  - rewrite Rabs_mult, (Rabs_pos_eq (1 - y ^ 2)) by lra. pose proof (Rabs_pos ds'). nra.
Qed.
