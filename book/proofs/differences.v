(** * Differences (chapter 8)

    How a gradient is checked with nothing but values of the function, and how far off such a check is. The function
    runs along a line: φ(ε) = f(x + ε tx). An error is O(ε^k) if it is at most C ε^k for every ε near 0, with one C.
    All this is on exact numbers: the model of rounding is a hypothesis of the best step, and of nothing else. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export products.

(** ** Taylor's formula *)

(** [differentiable n φ]: at 0 the function φ has n derivatives (so near 0 it has all but the last). *)
Definition differentiable (n : nat) (φ : R -> R) : Prop :=
  ex_derive_n φ n 0 /\ exists r, 0 < r /\ forall k t, (k < n)%nat -> Rabs t < r -> ex_derive_n φ k t.

(** The first n terms of Taylor's formula, from the derivatives d 0, d 1, ... at 0. *)
Definition taylor (n : nat) (d : nat -> R) (ε : R) : R := ∑ k < n, ε ^ k / INR (fact k) * d k.

Lemma derive_same (f g : R -> R) (t a : R) : (forall u, f u = g u) -> is_derive f t a -> is_derive g t a.
Proof. exact (is_derive_ext f g t a). Qed.

Lemma taylor_derive n d ε : is_derive (taylor (S n) d) ε (taylor n (fun k => d (S k)) ε).
Proof.
  induction n as [|n IH].
  - apply (derive_same (fun _ => 1 / INR (fact 0) * d 0%nat)); [intro; unfold taylor; simpl; ring|apply derive_const].
  - change (is_derive (fun u => taylor (S n) d u + u ^ S n / INR (fact (S n)) * d (S n)) ε
      (taylor n (fun k => d (S k)) ε + ε ^ n / INR (fact n) * d (S n))).
    apply (derive_plus (taylor (S n) d) (fun u => u ^ S n / INR (fact (S n)) * d (S n))); [exact IH|].
    apply (derive_same (fun u => d (S n) / INR (fact (S n)) * u ^ S n)); [intro; unfold Rdiv; ring|].
    eapply derive_eq.
    + apply (derive_scale (d (S n) / INR (fact (S n))) (fun u => u ^ S n)). apply is_derive_Reals, derivable_pt_lim_pow.
    + simpl pred. change (fact (S n)) with (S n * fact n)%nat. rewrite mult_INR. field.
      split; [apply INR_fact_neq_0|apply not_0_INR; lia].
Qed.

Lemma taylor_0 n d : taylor (S n) d 0 = d 0%nat.
Proof.
  induction n as [|n IH]; [unfold taylor; simpl; field|].
  change (taylor (S n) d 0 + 0 ^ S n / INR (fact (S n)) * d (S n) = d 0%nat). rewrite IH. simpl pow. unfold Rdiv. ring.
Qed.

(** A family of derivatives d 0, d 1, ..., of which the last is differentiable at 0. *)
Lemma taylor_family n (d : nat -> R -> R) r a : 0 < r ->
  (forall k t, (k < n)%nat -> Rabs t < r -> is_derive (d k) t (d (S k) t)) -> is_derive (d n) 0 a ->
  exists C ρ, 0 <= C /\ 0 < ρ /\
    forall ε, Rabs ε < ρ -> Rabs (d 0%nat ε - taylor (S n) (fun k => d k 0) ε) <= C * Rabs ε ^ S n.
Proof.
  revert d r. induction n as [|n IH]; intros d r Hr Hd Ha.
  - apply is_derive_Reals in Ha. destruct (Ha 1 Rlt_0_1) as [ρ H]. exists (Rabs a + 1), ρ.
    split; [pose proof (Rabs_pos a); lra|]. split; [apply cond_pos|]. intros ε Hε. rewrite pow_1.
    replace (taylor 1 (fun k => d k 0) ε) with (d 0%nat 0) by (unfold taylor; simpl; field).
    destruct (Req_dec ε 0) as [->|H0]; [rewrite Rminus_eq_0, Rabs_R0; lra|].
    specialize (H ε H0 Hε). rewrite Rplus_0_l in H.
    replace (d 0%nat ε - d 0%nat 0) with ((d 0%nat ε - d 0%nat 0) / ε * ε) by (field; exact H0).
    rewrite Rabs_mult. apply Rmult_le_compat_r; [apply Rabs_pos|].
    pose proof (Rabs_triang ((d 0%nat ε - d 0%nat 0) / ε - a) a) as HT.
    replace ((d 0%nat ε - d 0%nat 0) / ε - a + a) with ((d 0%nat ε - d 0%nat 0) / ε) in HT by ring. lra.
  - destruct (IH (fun k => d (S k)) r Hr ltac:(intros; apply Hd; [lia|assumption]) Ha) as [C [ρ [HC [Hρ H]]]].
    exists C, (Rmin r ρ). split; [exact HC|]. split; [now apply Rmin_pos|]. intros ε Hε.
    assert (Hrρ : Rabs ε < r /\ Rabs ε < ρ) by (split; eapply Rlt_le_trans; eauto using Rmin_l, Rmin_r).
    destruct (MVT_cor4 (fun u => d 0%nat u - taylor (S (S n)) (fun k => d k 0) u)
      (fun u => d 1%nat u - taylor (S n) (fun k => d (S k) 0) u) 0 (Rabs ε)) with (b := ε) as [c [H1 H2]].
    + intros c Hc. rewrite Rminus_0_r in Hc. apply (derive_minus (d 0%nat) (taylor (S (S n)) (fun k => d k 0))).
      * apply Hd; [lia|lra].
      * exact (taylor_derive (S n) (fun k => d k 0) c).
    + rewrite Rminus_0_r. lra.
    + rewrite !Rminus_0_r in H2. rewrite Rminus_0_r, taylor_0, (Rminus_eq_0 (d 0%nat 0)), Rminus_0_r in H1. rewrite H1.
      rewrite Rabs_mult. rewrite <- tech_pow_Rmult, (Rmult_comm (Rabs ε)), <- Rmult_assoc.
      apply Rmult_le_compat_r; [apply Rabs_pos|]. eapply Rle_trans; [apply H; lra|].
      apply Rmult_le_compat_l; [exact HC|]. apply pow_incr. split; [apply Rabs_pos|exact H2].
Qed.

Lemma taylor_near n φ : differentiable (S n) φ ->
  exists C ρ, 0 <= C /\ 0 < ρ /\
    forall ε, Rabs ε < ρ -> Rabs (φ ε - taylor (S n) (fun k => Derive_n φ k 0) ε) <= C * Rabs ε ^ S n.
Proof.
  intros [H0 [r [Hr H]]]. apply (taylor_family n (Derive_n φ) r (Derive_n φ (S n) 0) Hr).
  - intros k t Hk Ht. apply Derive_correct. exact (H (S k) t ltac:(lia) Ht).
  - apply Derive_correct. exact H0.
Qed.

Lemma taylor_3 d ε : taylor 3 d ε = d 0%nat + ε * d 1%nat + ε ^ 2 / 2 * d 2%nat.
Proof. unfold taylor. simpl. field. Qed.

Lemma taylor_4 d ε : taylor 4 d ε = d 0%nat + ε * d 1%nat + ε ^ 2 / 2 * d 2%nat + ε ^ 3 / 6 * d 3%nat.
Proof. unfold taylor. simpl. field. Qed.

Lemma taylor_5 d ε :
  taylor 5 d ε = d 0%nat + ε * d 1%nat + ε ^ 2 / 2 * d 2%nat + ε ^ 3 / 6 * d 3%nat + ε ^ 4 / 24 * d 4%nat.
Proof. unfold taylor. simpl. field. Qed.

Lemma abs_2 ε : Rabs ε ^ 2 = ε ^ 2.
Proof. apply pow2_abs. Qed.

Lemma abs_4 ε : Rabs ε ^ 4 = ε ^ 4.
Proof. replace (Rabs ε ^ 4) with ((Rabs ε ^ 2) ^ 2) by ring. rewrite abs_2. ring. Qed.

Lemma same_error a b c : Rabs a <= c -> b = a -> Rabs b <= c.
Proof. now intros H ->. Qed.

Lemma nonzero ε : 0 < Rabs ε -> ε <> 0.
Proof. intros H ->. rewrite Rabs_R0 in H. lra. Qed.

Lemma bound_over n a c C ε : Rabs a <= C * Rabs ε ^ S n -> 0 < Rabs ε -> 0 < c ->
  Rabs (a / (c * ε)) <= C / c * Rabs ε ^ n.
Proof.
  intros H Hε Hc. apply nonzero in Hε as H0. unfold Rdiv.
  rewrite Rabs_mult, Rabs_inv, Rabs_mult, (Rabs_pos_eq c) by lra.
  apply (Rmult_le_reg_r (c * Rabs ε)); [now apply Rmult_lt_0_compat|].
  replace (Rabs a * / (c * Rabs ε) * (c * Rabs ε)) with (Rabs a) by (field; lra).
  replace (C * / c * Rabs ε ^ n * (c * Rabs ε)) with (C * Rabs ε ^ S n) by (simpl; field; lra). exact H.
Qed.

(** A step to either side: with four derivatives at 0, the function is its first four terms, up to C ε⁴. *)
Theorem step_taylor (φ : R -> R) :
  let φ' := Derive_n φ 1 0 in
  let φ'' := Derive_n φ 2 0 in
  let φ''' := Derive_n φ 3 0 in
  differentiable 4 φ ->
  exists C r, 0 < r /\ forall ε, Rabs ε < r ->
    Rabs (φ ε - (φ 0 + ε * φ' + ε ^ 2 / 2 * φ'' + ε ^ 3 / 6 * φ''')) <= C * ε ^ 4 /\
    Rabs (φ (- ε) - (φ 0 - ε * φ' + ε ^ 2 / 2 * φ'' - ε ^ 3 / 6 * φ''')) <= C * ε ^ 4.
Proof.
  intros φ' φ'' φ''' Hφ. destruct (taylor_near 3 φ Hφ) as [C [r [_ [Hr H]]]]. exists C, r. split; [exact Hr|].
  intros ε Hε. rewrite <- abs_4. pose proof (H ε Hε) as H1. rewrite <- Rabs_Ropp in Hε. pose proof (H (- ε) Hε) as H2.
  rewrite taylor_4 in H1, H2. rewrite Rabs_Ropp in H2. split; [exact H1|].
  apply (same_error _ _ _ H2). unfold φ', φ'', φ'''. change (Derive_n φ 0 0) with (φ 0). field.
Qed.

(** ** One step, two steps *)

(** One step forward: the quotient is off by ε/2 times the second derivative, up to C ε². *)
Theorem eq_forward_difference {s} (f : tensor s -> R) (x tx : tensor s) :
  let φ := fun ε => f (along x ε tx) in
  let φ' := Derive_n φ 1 0 in
  let φ'' := Derive_n φ 2 0 in
  differentiable 3 φ ->
  exists C r, 0 < r /\ forall ε, 0 < Rabs ε < r ->
    Rabs ((f (along x ε tx) - f x) / ε - (φ' + ε / 2 * φ'')) <= C * ε ^ 2.
Proof.
  intros φ φ' φ'' Hφ. destruct (taylor_near 2 φ Hφ) as [C [r [_ [Hr H]]]]. exists (C / 1), r. split; [exact Hr|].
  intros ε [H0 Hε]. specialize (H ε Hε). rewrite taylor_3 in H. apply (bound_over 2 _ 1 C ε) in H; [|lra|lra].
  rewrite abs_2 in H. apply (same_error _ _ _ H).
  change (Derive_n φ 0 0) with (φ 0). change (Derive_n φ 1 0) with φ'. change (Derive_n φ 2 0) with φ''.
  replace (f x) with (φ 0) by (unfold φ; now rewrite along_0). change (f (along x ε tx)) with (φ ε).
  field. now apply nonzero.
Qed.

Lemma both_sides n φ : differentiable (S n) φ ->
  exists C r, 0 <= C /\ 0 < r /\ forall ε, 0 < Rabs ε < r ->
    Rabs ((φ ε - φ (- ε) - (taylor (S n) (fun k => Derive_n φ k 0) ε - taylor (S n) (fun k => Derive_n φ k 0) (- ε)))
      / (2 * ε)) <= C * Rabs ε ^ n.
Proof.
  intro Hφ. destruct (taylor_near n φ Hφ) as [C [r [HC [Hr H]]]]. exists C, r. split; [exact HC|]. split; [exact Hr|].
  intros ε [H0 Hε]. replace C with (2 * C / 2) by field. apply bound_over; [|exact H0|lra].
  pose proof (H ε Hε) as H1. rewrite <- Rabs_Ropp in Hε. pose proof (H (- ε) Hε) as H2. rewrite Rabs_Ropp in H2.
  set (T := taylor (S n) (fun k => Derive_n φ k 0)) in *.
  replace (φ ε - φ (- ε) - (T ε - T (- ε))) with ((φ ε - T ε) - (φ (- ε) - T (- ε))) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. rewrite Rabs_Ropp. lra.
Qed.

Lemma central_3 φ : differentiable 3 φ ->
  exists C r, 0 < r /\ forall ε, 0 < Rabs ε < r ->
    Rabs ((φ ε - φ (- ε)) / (2 * ε) - Derive_n φ 1 0) <= C * ε ^ 2.
Proof.
  intro Hφ. destruct (both_sides 2 φ Hφ) as [C [r [_ [Hr H]]]]. exists C, r. split; [exact Hr|].
  intros ε Hε. specialize (H ε Hε). rewrite !taylor_3, abs_2 in H. apply (same_error _ _ _ H).
  field. now apply nonzero.
Qed.

Lemma central_5 φ : differentiable 5 φ ->
  exists C r, 0 <= C /\ 0 < r /\ forall ε, 0 < Rabs ε < r ->
    Rabs ((φ ε - φ (- ε)) / (2 * ε) - (Derive_n φ 1 0 + ε ^ 2 / 6 * Derive_n φ 3 0)) <= C * ε ^ 4.
Proof.
  intro Hφ. destruct (both_sides 4 φ Hφ) as [C [r [HC [Hr H]]]]. exists C, r. split; [exact HC|]. split; [exact Hr|].
  intros ε Hε. specialize (H ε Hε). rewrite !taylor_5, abs_4 in H. apply (same_error _ _ _ H).
  field. now apply nonzero.
Qed.

(** A step to each side: all even terms cancel, and the error starts with the square of the step, up to C ε⁴. *)
Theorem eq_central_difference {s} (f : tensor s -> R) (x tx : tensor s) :
  let φ := fun ε => f (along x ε tx) in
  let φ' := Derive_n φ 1 0 in
  let φ''' := Derive_n φ 3 0 in
  differentiable 5 φ ->
  exists C r, 0 < r /\ forall ε, 0 < Rabs ε < r ->
    Rabs ((f (along x ε tx) - f (along x (- ε) tx)) / (2 * ε) - (φ' + ε ^ 2 / 6 * φ''')) <= C * ε ^ 4.
Proof.
  intros φ φ' φ''' Hφ. destruct (central_5 φ Hφ) as [C [r [_ H]]]. exists C, r. exact H.
Qed.

(** Half the step has a quarter of the error: four times the better minus the worse, over 3, is right up to C ε⁴. *)
Theorem eq_richardson {s} (f : tensor s -> R) (x tx : tensor s) :
  let φ := fun ε => f (along x ε tx) in
  let Δ := fun ε => (f (along x ε tx) - f (along x (- ε) tx)) / (2 * ε) in
  differentiable 5 φ ->
  exists C r, 0 < r /\ forall ε, 0 < Rabs ε < r ->
    Rabs ((4 * Δ (ε / 2) - Δ ε) / 3 - Derive_n φ 1 0) <= C * ε ^ 4.
Proof.
  intros φ Δ Hφ. destruct (central_5 φ Hφ) as [C [r [HC [Hr H]]]]. exists C, r. split; [exact Hr|]. intros ε Hε.
  assert (Hh : 0 < Rabs (ε / 2) < r).
  { unfold Rdiv. rewrite Rabs_mult, (Rabs_pos_eq (/ 2)) by lra. lra. }
  pose proof (H ε Hε) as H1. pose proof (H (ε / 2) Hh) as H2.
  change ((φ ε - φ (- ε)) / (2 * ε)) with (Δ ε) in H1.
  change ((φ (ε / 2) - φ (- (ε / 2))) / (2 * (ε / 2))) with (Δ (ε / 2)) in H2.
  assert (0 <= C * ε ^ 4) by (apply Rmult_le_pos; [exact HC|rewrite <- abs_4; apply pow_le, Rabs_pos]).
  replace ((ε / 2) ^ 4) with (ε ^ 4 / 16) in H2 by field. replace ((ε / 2) ^ 2) with (ε ^ 2 / 4) in H2 by field.
  apply Rabs_le_between in H1. apply Rabs_le_between in H2. apply Rabs_le_between. lra.
Qed.

(** ** The complex step *)

Lemma sum_n_parts (a : nat -> C) N :
  sum_n a N = (sum_n (fun k => Re (a k)) N, sum_n (fun k => Im (a k)) N).
Proof.
  induction N as [|N IH]; [rewrite !sum_O; now destruct (a 0%nat)|].
  rewrite !sum_Sn, IH. now destruct (a (S N)).
Qed.

Lemma series_parts (a : nat -> C) (l : C) :
  is_series (K := C_AbsRing) (V := C_NormedModule) a l ->
  is_series (fun k => Re (a k)) (Re l) /\ is_series (fun k => Im (a k)) (Im l).
Proof.
  intro H. unfold is_series in *.
  split; apply filterlim_locally; intro e; pose proof (proj1 (filterlim_locally (sum_n a) l) H e) as He;
    refine (filter_imp _ _ _ He); intros N HN; rewrite sum_n_parts in HN; [exact (proj1 HN)|exact (proj2 HN)].
Qed.

(** The k-th power of i. *)
Fixpoint power_of_i (k : nat) : R * R :=
  match k with
  | O => (1, 0)
  | S k => (- snd (power_of_i k), fst (power_of_i k))
  end.

Lemma power_real (t : R) k : pow_n (K := C_AbsRing) (RtoC t) k = RtoC (t ^ k).
Proof.
  induction k as [|k IH]; [reflexivity|]. simpl pow_n. rewrite IH. simpl. symmetry. exact (RtoC_mult t (t ^ k)).
Qed.

Lemma power_imaginary (ε : R) k :
  pow_n (K := C_AbsRing) (Ci * ε)%C k = (fst (power_of_i k) * ε ^ k, snd (power_of_i k) * ε ^ k).
Proof.
  induction k as [|k IH]; [simpl; unfold one; simpl; unfold RtoC; f_equal; ring|]. simpl pow_n. rewrite IH.
  unfold mult; simpl. unfold Cmult; simpl. f_equal; ring.
Qed.

Lemma scal_C (z : C) (a : R) : scal (K := C_AbsRing) (V := C_NormedModule) z (RtoC a) = (fst z * a, snd z * a).
Proof. unfold scal; simpl. unfold mult; simpl. unfold Cmult, RtoC; simpl. f_equal; ring. Qed.

Lemma radius_of (a : nat -> R) r :
  (forall x, Rabs x < r -> ex_series (fun k => a k * x ^ k)) -> forall x, Rabs x < r -> Rbar_lt (Rabs x) (CV_radius a).
Proof.
  intros H x Hx. set (m := (Rabs x + r) / 2). assert (Hm : Rabs x < m < r) by (unfold m; lra).
  assert (Rabs m = m) as Ha by (apply Rabs_pos_eq; pose proof (Rabs_pos x); lra).
  apply Rbar_lt_le_trans with m; [exact (proj1 Hm)|]. apply Rbar_not_lt_le. intro HL.
  apply (CV_disk_outside a m); [now rewrite Ha|]. apply ex_series_lim_0, H. lra.
Qed.

(** A step in the imaginary direction, nothing subtracted: the error starts with minus the square of the step, up to
    C ε⁴. Here φ(z) = f(x + z tx) is a power series near 0, with real coefficients: f is analytic, and real on reals. *)
Theorem eq_complex_step (φ : C -> C) (a : nat -> R) r :
  let φ' := Derive_n (fun t : R => Re (φ t)) 1 0 in
  let φ''' := Derive_n (fun t : R => Re (φ t)) 3 0 in
  0 < r ->
  (forall z, Cmod z < r -> is_pseries (K := C_AbsRing) (V := C_NormedModule) (fun k => RtoC (a k)) z (φ z)) ->
  (forall t : R, Rabs t < r -> Im (φ t) = 0) /\
  exists C ρ, 0 < ρ /\ forall ε : R, 0 < Rabs ε < ρ ->
    Rabs (Im (φ (Ci * ε)%C) / ε - (φ' - ε ^ 2 / 6 * φ''')) <= C * ε ^ 4.
Proof.
  intros φ' φ''' Hr H.
  assert (HR : forall t : R, Rabs t < r -> is_series (fun k => a k * t ^ k) (Re (φ t)) /\ Im (φ t) = 0).
  { intros t Ht. rewrite <- Cmod_R in Ht. destruct (series_parts _ _ (H t Ht)) as [H1 H2]. split.
    - refine (is_series_ext _ _ _ _ H1). intro k. rewrite power_real, scal_C. simpl. ring.
    - apply is_series_unique in H2. rewrite <- H2. apply is_series_unique.
      apply (is_series_ext (fun _ => 0)); [intro k; rewrite power_real, scal_C; simpl; ring|].
      unfold is_series. apply (filterlim_ext (fun _ => 0)); [|apply filterlim_const].
      intro N. induction N as [|N IH]; [now rewrite sum_O|]. rewrite sum_Sn, <- IH. unfold plus; simpl. ring. }
  assert (HI : forall ε : R, Rabs ε < r -> is_series (fun k => snd (power_of_i k) * a k * ε ^ k) (Im (φ (Ci * ε)%C))).
  { intros ε Hε. assert (Hz : Cmod (Ci * ε)%C < r).
    { rewrite Cmod_mult, Cmod_R. replace (Cmod Ci) with 1; [lra|]. unfold Cmod, Ci; simpl fst; simpl snd.
      replace (0 ^ 2 + 1 ^ 2) with 1 by ring. now rewrite sqrt_1. }
    refine (is_series_ext _ _ _ _ (proj2 (series_parts _ _ (H _ Hz)))). intro k.
    rewrite power_imaginary, scal_C. simpl. ring. }
  split; [intros t Ht; exact (proj2 (HR t Ht))|].
  set (b := fun k => snd (power_of_i k) * a k) in *.
  assert (Ha : forall x, Rabs x < r -> Rbar_lt (Rabs x) (CV_radius a)).
  { apply radius_of. intros x Hx. eexists. exact (proj1 (HR x Hx)). }
  assert (Hb : forall x, Rabs x < r -> Rbar_lt (Rabs x) (CV_radius b)).
  { apply radius_of. intros x Hx. eexists. exact (HI x Hx). }
  assert (H0 : Rabs 0 < r) by now rewrite Rabs_R0.
  assert (Hφ : forall n, Derive_n (fun t : R => Re (φ t)) n 0 = a n * INR (fact n)).
  { intro n. rewrite <- Derive_n_coef by (specialize (Ha 0 H0); now rewrite Rabs_R0 in Ha).
    apply Derive_n_ext_loc. exists (mkposreal r Hr). intros t Ht. unfold ball in Ht; simpl in Ht.
    unfold AbsRing_ball, abs, minus, plus, opp in Ht; simpl in Ht. rewrite Ropp_0, Rplus_0_r in Ht.
    symmetry. apply is_series_unique. exact (proj1 (HR t Ht)). }
  assert (Hd : differentiable 5 (PSeries b)).
  { split; [apply ex_derive_n_PSeries; now apply Hb|]. exists r. split; [exact Hr|]. intros k t _ Ht.
    apply ex_derive_n_PSeries. now apply Hb. }
  destruct (taylor_near 4 (PSeries b) Hd) as [C [ρ [_ [Hρ HT]]]]. exists (C / 1), (Rmin r ρ).
  split; [now apply Rmin_pos|]. intros ε [Hε1 Hε2]. assert (Hrρ : Rabs ε < r /\ Rabs ε < ρ).
  { split; eapply Rlt_le_trans; [exact Hε2|apply Rmin_l|exact Hε2|apply Rmin_r]. }
  specialize (HT ε (proj2 Hrρ)). rewrite taylor_5 in HT.
  apply (bound_over 4 _ 1 C ε) in HT; [|exact Hε1|lra]. rewrite abs_4 in HT. apply (same_error _ _ _ HT).
  rewrite !Derive_n_coef by (specialize (Hb 0 H0); now rewrite Rabs_R0 in Hb).
  replace (PSeries b ε) with (Im (φ (Ci * ε)%C)) by (symmetry; apply is_series_unique, HI; exact (proj1 Hrρ)).
  unfold φ', φ'''. rewrite !Hφ. unfold b. simpl. field. now apply nonzero.
Qed.

(** ** Which step? *)

Lemma best_forward a s ε : 0 < a -> 0 < s -> 0 < ε -> ε <> s -> a * s + a * s ^ 2 / s < a * ε + a * s ^ 2 / ε.
Proof.
  intros Ha Hs Hε H. replace (a * ε + a * s ^ 2 / ε) with (a * s + a * s ^ 2 / s + a * (ε - s) ^ 2 / ε) by (field; lra).
  assert (0 < a * (ε - s) ^ 2 / ε); [|lra]. apply Rdiv_lt_0_compat; [|exact Hε]. apply Rmult_lt_0_compat; [exact Ha|].
  apply pow2_gt_0. lra.
Qed.

Lemma best_central a s ε : 0 < a -> 0 < s -> 0 < ε -> ε <> s ->
  a * s ^ 2 + 2 * a * s ^ 3 / s < a * ε ^ 2 + 2 * a * s ^ 3 / ε.
Proof.
  intros Ha Hs Hε H.
  replace (a * ε ^ 2 + 2 * a * s ^ 3 / ε) with
    (a * s ^ 2 + 2 * a * s ^ 3 / s + a * (ε - s) ^ 2 * (ε + 2 * s) / ε) by (field; lra).
  assert (0 < a * (ε - s) ^ 2 * (ε + 2 * s) / ε); [|lra]. apply Rdiv_lt_0_compat; [|exact Hε].
  apply Rmult_lt_0_compat; [|lra]. apply Rmult_lt_0_compat; [exact Ha|]. apply pow2_gt_0. lra.
Qed.

(** The modeled error is least at one step alone: a square root for one step forward, a cube root for a step to each
    side. *)
Theorem eq_best_step u f φ'' φ''' :
  let E_forward := fun ε => ε / 2 * Rabs φ'' + 2 * u * Rabs f / ε in
  let E_central := fun ε => ε ^ 2 / 6 * Rabs φ''' + u * Rabs f / ε in
  let ε_forward := 2 * sqrt (u * Rabs f / Rabs φ'') in
  let ε_central := Rpower (3 * u * Rabs f / Rabs φ''') (1 / 3) in
  0 < u -> f <> 0 ->
  (φ'' <> 0 -> 0 < ε_forward /\ forall ε, 0 < ε -> ε <> ε_forward -> E_forward ε_forward < E_forward ε) /\
  (φ''' <> 0 -> 0 < ε_central /\ forall ε, 0 < ε -> ε <> ε_central -> E_central ε_central < E_central ε).
Proof.
  intros E_forward E_central s3 c3 Hu Hf. apply Rabs_pos_lt in Hf. unfold E_forward, E_central.
  split; intro Hφ; apply Rabs_pos_lt in Hφ.
  - set (a := Rabs φ'') in *. set (b := Rabs f) in *.
    assert (Hq : 0 < u * b / a) by (apply Rdiv_lt_0_compat; [now apply Rmult_lt_0_compat|exact Hφ]).
    assert (Hs : 0 < s3) by (pose proof (sqrt_lt_R0 _ Hq); unfold s3; fold a b; lra).
    assert (H2 : 2 * u * b = a / 2 * s3 ^ 2).
    { unfold s3. fold a b. rewrite Rpow_mult_distr, pow2_sqrt by lra. field. lra. }
    split; [exact Hs|]. intros ε Hε H. rewrite H2, !(Rmult_comm (_ / 2) a).
    replace (a * (s3 / 2)) with (a / 2 * s3) by field. replace (a * (ε / 2)) with (a / 2 * ε) by field.
    apply best_forward; lra.
  - set (a := Rabs φ''') in *. set (b := Rabs f) in *.
    assert (Hq : 0 < 3 * u * b / a) by (apply Rdiv_lt_0_compat; [apply Rmult_lt_0_compat; lra|exact Hφ]).
    assert (Hs : 0 < c3) by apply exp_pos.
    assert (H2 : u * b = 2 * (a / 6) * c3 ^ 3).
    { rewrite <- (Rpower_pow 3 c3 Hs). unfold c3. fold a b. rewrite Rpower_mult.
      replace (1 / 3 * INR 3) with 1 by (simpl; field). rewrite Rpower_1 by exact Hq. field. lra. }
    split; [exact Hs|]. intros ε Hε H. rewrite H2.
    replace (c3 ^ 2 / 6 * a) with (a / 6 * c3 ^ 2) by field. replace (ε ^ 2 / 6 * a) with (a / 6 * ε ^ 2) by field.
    apply best_central; lra.
Qed.

(** ** A whole gradient along one direction *)

(** If dX is the gradient at X of what dY asks of f X, then ⟨dX, tX⟩ is ⟨dY, tY⟩, and values of f alone measure it, up
    to C ε². *)
Theorem eq_vjp_check {m n p q} (f : tensor [m; n] -> tensor [p; q]) (X tX dX : tensor [m; n]) (tY dY : tensor [p; q]) :
  let Δ : R -> tensor [p; q] := fun ε i j => (f (X ⊕ ε • tX) i j - f (X ⊕ (- ε) • tX) i j) / (2 * ε) in
  gradient (fun X => ⟨dY, f X⟩) X dX ->
  moves (fun ε => f (X ⊕ ε • tX)) 0 tY ->
  differentiable 3 (fun ε => ⟨dY, f (X ⊕ ε • tX)⟩) ->
  ⟨dX, tX⟩ = ⟨dY, tY⟩ /\
  exists C r, 0 < r /\ forall ε, 0 < Rabs ε < r -> Rabs (⟨dX, tX⟩ - ⟨dY, Δ ε⟩) <= C * ε ^ 2.
Proof.
  intros Δ Hg Ht Hd. set (φ := fun ε => ⟨dY, f (X ⊕ ε • tX)⟩) in *.
  assert (H1 : is_derive φ 0 ⟨dX, tX⟩) by exact (gradient_along (fun X => ⟨dY, f X⟩) X dX tX Hg).
  assert (H2 : is_derive φ 0 ⟨dY, tY⟩).
  { eapply derive_eq; [exact (dot_derive (fun _ => dY) (fun ε => f (X ⊕ ε • tX)) 0 zero tY (moves_const dY 0) Ht)|].
    cbv beta. rewrite dot_comm, dot_zero. ring. }
  apply is_derive_unique in H1, H2. split; [congruence|].
  destruct (central_3 φ Hd) as [C [r [Hr H]]]. exists C, r. split; [exact Hr|]. intros ε Hε.
  specialize (H ε Hε). rewrite Rabs_minus_sym. apply (same_error _ _ _ H).
  change (Derive_n φ 1 0) with (Derive φ 0). rewrite H1. f_equal.
  unfold φ, Δ. simpl. rewrite <- sum_minus, sum_div. apply sum_ext; intros i _.
  rewrite <- sum_minus, sum_div. apply sum_ext; intros j _. unfold Rdiv. ring.
Qed.

(** ** Is one direction enough? *)

(** What is asked of a mean: it adds and scales, for those functions that have one. *)
Definition linear_mean {T} (has_mean : (T -> R) -> Prop) (mean : (T -> R) -> R) : Prop :=
  (forall F G, has_mean F -> has_mean G ->
    has_mean (fun X => F X + G X) /\ mean (fun X => F X + G X) = mean F + mean G) /\
  (forall c F, has_mean F -> has_mean (fun X => c * F X) /\ mean (fun X => c * F X) = c * mean F) /\
  has_mean (fun _ => 0).

Lemma mean_sum {T} has_mean mean n (F : nat -> T -> R) :
  linear_mean has_mean mean -> (forall i, (i < n)%nat -> has_mean (F i)) ->
  has_mean (fun X => ∑ i < n, F i X) /\ mean (fun X => ∑ i < n, F i X) = ∑ i < n, mean (F i).
Proof.
  intros (Hp & Hs & H0) HF. induction n as [|n IH]; simpl.
  - split; [exact H0|]. pose proof (proj2 (Hs 0 (fun _ => 0) H0)) as H. cbv beta in H.
    rewrite !Rmult_0_l in H. exact H.
  - destruct IH as [H1 H2]; [auto|]. destruct (Hp _ _ H1 (HF n (Nat.lt_succ_diag_r n))) as [H3 H4].
    split; [exact H3|]. now rewrite H4, H2.
Qed.

(** The mean square of what the check sees is a double sum over pairs of entries. The mean may be any that adds and
    scales, if products of two entries have one. *)
Theorem step_random_direction m n (E : tensor [m; n]) (has_mean : (tensor [m; n] -> R) -> Prop) mean :
  linear_mean has_mean mean ->
  (forall i j k l, (i < m)%nat -> (j < n)%nat -> (k < m)%nat -> (l < n)%nat -> has_mean (fun X => X i j * X k l)) ->
  mean (fun X => ⟨E, X⟩ ^ 2) =
  ∑ i < m, ∑ j < n, ∑ k < m, ∑ l < n, E i j * E k l * mean (fun X => X i j * X k l).
Proof.
  intros HL HX. pose proof HL as (_ & Hs & _).
  transitivity (mean (fun X => ∑ i < m, ∑ j < n, ∑ k < m, ∑ l < n, E i j * E k l * (X i j * X k l))).
  - f_equal. apply functional_extensionality; intro X. simpl. rewrite Rmult_1_r, sum_r. apply sum_ext; intros i _.
    rewrite sum_r. apply sum_ext; intros j _. rewrite sum_l. apply sum_ext; intros k _.
    rewrite sum_l. apply sum_ext; intros l _. ring.
  - assert (H4 : forall i j k l, (i < m)%nat -> (j < n)%nat -> (k < m)%nat -> (l < n)%nat ->
      has_mean (fun X => E i j * E k l * (X i j * X k l))) by (intros; apply (Hs (E i j * E k l)); auto).
    assert (H3 : forall i j k, (i < m)%nat -> (j < n)%nat -> (k < m)%nat ->
      has_mean (fun X => ∑ l < n, E i j * E k l * (X i j * X k l)))
      by (intros; apply (mean_sum has_mean mean n (fun l X => E i j * E k l * (X i j * X k l))); auto).
    assert (H2 : forall i j, (i < m)%nat -> (j < n)%nat ->
      has_mean (fun X => ∑ k < m, ∑ l < n, E i j * E k l * (X i j * X k l)))
      by (intros; apply (mean_sum has_mean mean m (fun k X => ∑ l < n, E i j * E k l * (X i j * X k l))); auto).
    assert (H1 : forall i, (i < m)%nat ->
      has_mean (fun X => ∑ j < n, ∑ k < m, ∑ l < n, E i j * E k l * (X i j * X k l)))
      by (intros i Hi; apply (mean_sum has_mean mean n (fun j X => ∑ k < m, ∑ l < n, E i j * E k l * (X i j * X k l)));
        auto).
    etransitivity; [exact (proj2 (mean_sum has_mean mean m
      (fun i X => ∑ j < n, ∑ k < m, ∑ l < n, E i j * E k l * (X i j * X k l)) HL H1))|]. apply sum_ext; intros i Hi.
    etransitivity; [exact (proj2 (mean_sum has_mean mean n
      (fun j X => ∑ k < m, ∑ l < n, E i j * E k l * (X i j * X k l)) HL (fun j => H2 i j Hi)))|].
    apply sum_ext; intros j Hj.
    etransitivity; [exact (proj2 (mean_sum has_mean mean m
      (fun k X => ∑ l < n, E i j * E k l * (X i j * X k l)) HL (fun k => H3 i j k Hi Hj)))|].
    apply sum_ext; intros k Hk.
    etransitivity; [exact (proj2 (mean_sum has_mean mean n
      (fun l X => E i j * E k l * (X i j * X k l)) HL (fun l => H4 i j k l Hi Hj Hk)))|].
    apply sum_ext; intros l Hl. now apply (Hs (E i j * E k l)), HX.
Qed.

(** If entries have variance 1, and different ones are uncorrelated, then in the mean a random direction sees the error
    at its full size. The mean need only be defined for some functions, as that over normal directions is. *)
Theorem eq_random_direction m n (E : tensor [m; n]) (has_mean : (tensor [m; n] -> R) -> Prop) mean :
  linear_mean has_mean mean ->
  (forall i j k l, (i < m)%nat -> (j < n)%nat -> (k < m)%nat -> (l < n)%nat ->
    has_mean (fun X => X i j * X k l) /\ mean (fun X => X i j * X k l) = δ i k * δ j l) ->
  mean (fun X => ⟨E, X⟩ ^ 2) = ∑ i < m, ∑ j < n, E i j ^ 2.
Proof.
  intros HL HX. rewrite (step_random_direction m n E has_mean mean HL) by (intros; now apply HX).
  apply sum_ext; intros i Hi. apply sum_ext; intros j Hj.
  transitivity (∑ k < m, δ i k * ∑ l < n, δ j l * (E i j * E k l));
    [|rewrite (sum_δ m i (fun k => ∑ l < n, δ j l * (E i j * E k l)) Hi),
        (sum_δ n j (fun l => E i j * E i l) Hj); ring].
  apply sum_ext; intros k Hk. rewrite sum_l. apply sum_ext; intros l Hl. rewrite (proj2 (HX i j k l Hi Hj Hk Hl)). ring.
Qed.

(** The mean of F over all 2^n choices of n signs. *)
Definition put (k : nat) (v : R) (x : nat -> R) : nat -> R := fun i => if (i =? k)%nat then v else x i.
Fixpoint over_signs (n : nat) (F : (nat -> R) -> R) : R :=
  match n with
  | O => F (fun _ => 0)
  | S m => (over_signs m (fun x => F (put m 1 x)) + over_signs m (fun x => F (put m (-1) x))) / 2
  end.

Lemma over_signs_plus n F G : over_signs n (fun x => F x + G x) = over_signs n F + over_signs n G.
Proof.
  revert F G. induction n as [|n IH]; intros F G; simpl; [reflexivity|].
  rewrite (IH (fun x => F (put n 1 x)) (fun x => G (put n 1 x))).
  rewrite (IH (fun x => F (put n (-1) x)) (fun x => G (put n (-1) x))). field.
Qed.

Lemma over_signs_scale n c F : over_signs n (fun x => c * F x) = c * over_signs n F.
Proof.
  revert F. induction n as [|n IH]; intro F; simpl; [reflexivity|].
  rewrite (IH (fun x => F (put n 1 x))), (IH (fun x => F (put n (-1) x))). field.
Qed.

Lemma over_signs_const n c : over_signs n (fun _ => c) = c.
Proof. induction n as [|n IH]; simpl; [reflexivity|]. rewrite IH. field. Qed.

Lemma put_same k v x : put k v x k = v.
Proof. unfold put. now rewrite Nat.eqb_refl. Qed.

Lemma put_other k v x i : (i < k)%nat -> put k v x i = x i.
Proof. intro H. unfold put. destruct (Nat.eqb_spec i k); [lia|reflexivity]. Qed.

Lemma over_signs_S n F A B : (forall x, F (put n 1 x) = A x) -> (forall x, F (put n (-1) x) = B x) ->
  over_signs (S n) F = (over_signs n A + over_signs n B) / 2.
Proof.
  intros HA HB. apply functional_extensionality in HA, HB. simpl. now rewrite HA, HB.
Qed.

Lemma over_signs_pair n i j : (i < n)%nat -> (j < n)%nat -> over_signs n (fun x => x i * x j) = δ i j.
Proof.
  revert i j. induction n as [|n IH]; intros i j Hi Hj; [lia|].
  destruct (Nat.eq_dec i n) as [->|Hin], (Nat.eq_dec j n) as [->|Hjn].
  - rewrite (over_signs_S n _ (fun _ => 1) (fun _ => 1)); [|intro; rewrite !put_same; ring..].
    rewrite over_signs_const, δ_same. field.
  - rewrite (over_signs_S n _ (fun x => x j) (fun x => -1 * x j));
      [|intro; rewrite put_same, put_other by lia; ring..].
    rewrite (over_signs_scale n (-1) (fun x => x j)), δ_other by congruence. field.
  - rewrite (over_signs_S n _ (fun x => x i) (fun x => -1 * x i));
      [|intro; rewrite put_same, put_other by lia; ring..].
    rewrite (over_signs_scale n (-1) (fun x => x i)), δ_other by congruence. field.
  - rewrite (over_signs_S n _ (fun x => x i * x j) (fun x => x i * x j));
      [|intro; rewrite !put_other by lia; reflexivity..].
    rewrite IH by lia. field.
Qed.

(** In the mean over all 2^(m n) matrices of ones and minus ones, a random direction sees the error at its full size. *)
Theorem eq_random_direction__signs m n (E : tensor [m; n]) :
  over_signs (m * n) (fun x => dot (s := [m; n]) E (fun i j => x (i * n + j)%nat) ^ 2) = ∑ i < m, ∑ j < n, E i j ^ 2.
Proof.
  apply (eq_random_direction m n E (fun _ => True)
    (fun F => over_signs (m * n) (fun x => F (fun i j => x (i * n + j)%nat)))).
  - split; [|split; [|exact I]]; intros; (split; [exact I|]);
      [exact (over_signs_plus _ _ _)|exact (over_signs_scale _ _ _)].
  - intros i j k l Hi Hj Hk Hl. split; [exact I|]. rewrite over_signs_pair by nia.
    destruct (Nat.eq_dec i k) as [<-|Hik].
    + rewrite δ_same. destruct (Nat.eq_dec j l) as [<-|Hjl]; [rewrite !δ_same; ring|].
      rewrite !δ_other by lia. ring.
    + rewrite (δ_other i k Hik), δ_other; [ring|]. nia.
Qed.
