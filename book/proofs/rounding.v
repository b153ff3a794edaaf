(** * One rounding, and many (chapter 10)

    A model of rounding to so many bits, and what follows from it.
    That a processor keeps to the model is IEEE's promise,
    not a theorem of ours. *)

From Coq Require Import ZArith.
From attnbook Require Export calculus.

(** ** One rounding *)

Definition power (e : Z) : R := powerRZ 2 e.

Lemma power_pos e : 0 < power e.
Proof. apply powerRZ_lt. lra. Qed.

Lemma power_add a b : power (a + b) = power a * power b.
Proof. apply powerRZ_add. lra. Qed.

Lemma power_le a b : (a <= b)%Z -> power a <= power b.
Proof.
  intro H. replace b with (a + Z.of_nat (Z.to_nat (b - a)))%Z by lia. rewrite power_add.
  rewrite <- (Rmult_1_r (power a)) at 1. apply Rmult_le_compat_l; [apply Rlt_le, power_pos|].
  unfold power. rewrite <- pow_powerRZ. apply pow_R1_Rle. lra.
Qed.

(** The distance of the floats that begin at 2^e; below 2^e_min it stays as it is. *)
Definition spacing (bits e_min e : Z) : R := power (Z.max e e_min + 1 - bits).

(** y is x, rounded: x has the exponent e, and is divided by the spacing, made a whole number, and multiplied by it
    again. How a whole number is chosen, [rnd], is left open. *)
Definition rounds (rnd : R -> Z) (bits e_min : Z) (x y : R) : Prop :=
  exists e, power e <= Rabs x < power (e + 1) /\ y = IZR (rnd (x / spacing bits e_min e)) * spacing bits e_min e.

Lemma spacing_pos bits e_min e : 0 < spacing bits e_min e.
Proof. apply power_pos. Qed.

Lemma normal e_min e x : power e_min <= x -> x < power (e + 1) -> (e_min <= e)%Z.
Proof.
  intros H1 H2. destruct (Z_le_gt_dec e_min e) as [h|h]; [exact h|].
  pose proof (power_le (e + 1) e_min ltac:(lia)). lra.
Qed.

(** To the nearest, for x ≠ 0 and without overflow: a normal number moves by at most u = 2^(−bits) times its size, a
    smaller one by half the smallest. *)
Theorem eq_num_rounding (rnd : R -> Z) (bits e_min : Z) x y :
  (forall z, Rabs (IZR (rnd z) - z) <= / 2) -> rounds rnd bits e_min x y ->
  (power e_min <= Rabs x -> exists δ, y = x * (1 + δ) /\ Rabs δ <= power (- bits)) /\
  (Rabs x < power e_min -> Rabs (y - x) <= / 2 * power (e_min + 1 - bits)).
Proof.
  intros Hr [e [[He1 He2] Hy]]. set (s := spacing bits e_min e) in *. assert (Hs : 0 < s) by apply spacing_pos.
  assert (H : Rabs (y - x) <= / 2 * s).
  { rewrite Hy. replace (IZR (rnd (x / s)) * s - x) with ((IZR (rnd (x / s)) - x / s) * s) by (field; lra).
    rewrite Rabs_mult, (Rabs_right s) by lra. apply Rmult_le_compat_r; [lra|apply Hr]. }
  split; intro Hx.
  - pose proof (normal e_min e (Rabs x) Hx He2). pose proof (power_pos e) as Hp.
    assert (x <> 0) by (intros ->; rewrite Rabs_R0 in He1; lra).
    exists ((y - x) / x). split; [field; assumption|].
    unfold Rdiv. rewrite Rabs_mult, Rabs_inv. assert (Hx0 : 0 < Rabs x) by lra.
    apply (Rmult_le_reg_r (Rabs x)); [exact Hx0|]. rewrite Rmult_assoc, Rinv_l, Rmult_1_r by lra.
    eapply Rle_trans; [exact H|]. unfold s, spacing. rewrite Z.max_l by assumption.
    replace (e + 1 - bits)%Z with (- bits + e + 1)%Z by lia. rewrite !power_add.
    replace (power 1) with 2 by (unfold power; simpl; ring).
    pose proof (power_pos (- bits)). nra.
  - replace (e_min + 1 - bits)%Z with (Z.max e e_min + 1 - bits)%Z; [exact H|].
    f_equal. f_equal. apply Z.max_r. destruct (Z_le_gt_dec e e_min) as [h|h]; [exact h|].
    pose proof (power_le e_min e ltac:(lia)). lra.
Qed.

(** Rounding and a power of two may change places, as long as both sides are normal numbers (so x ≠ 0) and nothing
    overflows. *)
Theorem eq_num_power_of_two (rnd : R -> Z) (bits e_min k : Z) x y :
  power e_min <= Rabs x -> power e_min <= Rabs (power k * x) ->
  rounds rnd bits e_min x y -> rounds rnd bits e_min (power k * x) (power k * y).
Proof.
  intros H1 H2 [e [[He1 He2] Hy]]. pose proof (power_pos k) as Hk.
  assert (EA : Rabs (power k * x) = power k * Rabs x) by (rewrite Rabs_mult, (Rabs_right (power k)) by lra;
    reflexivity).
  assert (B1 : power (k + e) <= Rabs (power k * x)) by (rewrite EA, power_add; apply Rmult_le_compat_l; lra).
  assert (B2 : Rabs (power k * x) < power (k + e + 1)).
  { rewrite EA, <- Z.add_assoc, power_add. apply Rmult_lt_compat_l; lra. }
  exists (k + e)%Z. split; [split; assumption|].
  pose proof (normal e_min e _ H1 He2). pose proof (normal e_min (k + e) _ H2 B2).
  assert (ES : spacing bits e_min (k + e) = power k * spacing bits e_min e).
  { unfold spacing. rewrite !Z.max_l by assumption. rewrite <- power_add. f_equal. lia. }
  rewrite ES, Hy. pose proof (spacing_pos bits e_min e).
  replace (power k * x / (power k * spacing bits e_min e)) with (x / spacing bits e_min e) by (field; lra). ring.
Qed.

(** ** Sums *)

(** Additions in any order: a tree, with a relative error δ at each. *)
Inductive tree : Type :=
  | leaf (x : R)
  | node (δ : R) (l r : tree).

Fixpoint true_sum (t : tree) : R := match t with leaf x => x | node _ l r => true_sum l + true_sum r end.
Fixpoint computed (t : tree) : R := match t with leaf x => x | node δ l r => (computed l + computed r) * (1 + δ) end.
Fixpoint sizes (t : tree) : R := match t with leaf x => Rabs x | node _ l r => sizes l + sizes r end.
Fixpoint depth (t : tree) : nat := match t with leaf _ => 0 | node _ l r => S (Nat.max (depth l) (depth r)) end.
Fixpoint errors_within (u : R) (t : tree) : Prop :=
  match t with leaf _ => True | node δ l r => Rabs δ <= u /\ errors_within u l /\ errors_within u r end.

(** x_0, …, x_n one after the other, and 2^k terms in pairs, and the pairs in pairs. *)
Fixpoint one_by_one (x δ : nat -> R) (n : nat) : tree :=
  match n with O => leaf (x O) | S before => node (δ before) (one_by_one x δ before) (leaf (x n)) end.
Fixpoint in_pairs (x : nat -> R) (δ : nat -> nat -> R) (k from : nat) : tree :=
  match k with
  | O => leaf (x from)
  | S half => node (δ k from) (in_pairs x δ half from) (in_pairs x δ half (from + 2 ^ half))
  end.

Lemma sizes_nonneg t : 0 <= sizes t.
Proof. induction t; simpl; [apply Rabs_pos|lra]. Qed.

Lemma true_sum_le_sizes t : Rabs (true_sum t) <= sizes t.
Proof. induction t; simpl; [lra|]. eapply Rle_trans; [apply Rabs_triang|]. lra. Qed.

Lemma growth u t : 0 <= u -> errors_within u t -> Rabs (computed t - true_sum t) <= ((1 + u) ^ depth t - 1) * sizes t.
Proof.
  intro Hu. induction t as [x|δ l IHl r IHr]; intro H.
  - simpl. rewrite Rminus_eq_0, Rabs_R0. lra.
  - destruct H as [Hδ [Hl Hr]]. specialize (IHl Hl). specialize (IHr Hr). set (d := Nat.max (depth l) (depth r)).
    assert (up : forall t, (depth t <= d)%nat -> ((1 + u) ^ depth t - 1) * sizes t <= ((1 + u) ^ d - 1) * sizes t).
    { intros t Ht. apply Rmult_le_compat_r; [apply sizes_nonneg|]. pose proof (Rle_pow (1 + u) _ _ ltac:(lra) Ht).
      lra. }
    pose proof (up l (Nat.le_max_l _ _)). pose proof (up r (Nat.le_max_r _ _)).
    change (depth (node δ l r)) with (S d). simpl pow. simpl computed.
    change (true_sum (node δ l r)) with (true_sum l + true_sum r). change (sizes (node δ l r)) with (sizes l + sizes r).
    set (p := (1 + u) ^ d) in *.
    replace ((computed l + computed r) * (1 + δ) - (true_sum l + true_sum r))
      with ((computed l - true_sum l + (computed r - true_sum r)) * (1 + δ) + δ * (true_sum l + true_sum r)) by ring.
    eapply Rle_trans; [apply Rabs_triang|]. rewrite !Rabs_mult.
    assert (A1 : Rabs (computed l - true_sum l + (computed r - true_sum r)) <= (p - 1) * (sizes l + sizes r)).
    { eapply Rle_trans; [apply Rabs_triang|]. lra. }
    assert (A2 : Rabs (1 + δ) <= 1 + u) by (eapply Rle_trans; [apply Rabs_triang|rewrite Rabs_R1; lra]).
    assert (A3 : Rabs (true_sum l + true_sum r) <= sizes l + sizes r).
    { eapply Rle_trans; [apply Rabs_triang|]. pose proof (true_sum_le_sizes l). pose proof (true_sum_le_sizes r). lra. }
    pose proof (Rmult_le_compat _ _ _ _ (Rabs_pos _) (Rabs_pos _) A1 A2).
    pose proof (Rmult_le_compat _ _ _ _ (Rabs_pos _) (Rabs_pos _) Hδ A3).
    lra.
Qed.

Lemma growth_bound u k : 0 <= u -> INR k * u < 1 -> (1 + u) ^ k - 1 <= INR k * u / (1 - INR k * u).
Proof.
  intros Hu Hk.
  assert (H : forall j, (j <= k)%nat -> (1 + u) ^ j * (1 - INR j * u) <= 1).
  { induction j as [|j IH]; intro Hj; [simpl; lra|]. specialize (IH ltac:(lia)). rewrite S_INR. simpl pow.
    pose proof (pow_le (1 + u) j ltac:(lra)). pose proof (pos_INR j).
    assert ((1 + u) * (1 - (INR j + 1) * u) <= 1 - INR j * u) by nra. nra. }
  specialize (H k (Nat.le_refl k)). apply (Rmult_le_reg_r (1 - INR k * u)); [lra|].
  replace (INR k * u / (1 - INR k * u) * (1 - INR k * u)) with (INR k * u) by (field; lra). lra.
Qed.

(** Additions in any order, each off by a factor of at most 1 ± u: the sum is off by γ_k times the sum of the sizes,
    where k is the depth of the tree. One by one it is n − 1 for n terms; in pairs, stated for n = 2^k terms only, it
    is k. *)
Theorem eq_num_sum u (t : tree) :
  let γ := fun k => INR k * u / (1 - INR k * u) in
  0 <= u -> INR (depth t) * u < 1 -> errors_within u t ->
  Rabs (computed t - true_sum t) <= γ (depth t) * sizes t /\
  (forall x δ n, depth (one_by_one x δ n) = n /\ true_sum (one_by_one x δ n) = ∑ i < S n, x i) /\
  (forall x δ k, depth (in_pairs x δ k 0) = k /\ true_sum (in_pairs x δ k 0) = ∑ i < 2 ^ k, x i).
Proof.
  intros γ Hu Hk Ht. split; [|split].
  - eapply Rle_trans; [exact (growth u t Hu Ht)|]. apply Rmult_le_compat_r; [apply sizes_nonneg|].
    now apply growth_bound.
  - intros x δ n. induction n as [|n [IH1 IH2]]; [split; simpl; [reflexivity|ring]|]. split.
    + simpl. rewrite IH1. lia.
    + change (true_sum (one_by_one x δ (S n))) with (true_sum (one_by_one x δ n) + x (S n)). now rewrite IH2.
  - intros x δ k.
    assert (H : forall from, depth (in_pairs x δ k from) = k /\
      true_sum (in_pairs x δ k from) = ∑ i < 2 ^ k, x (from + i)%nat).
    { induction k as [|k IH]; intro from; [split; simpl; [reflexivity|rewrite Nat.add_0_r; ring]|].
      destruct (IH from) as [D1 E1]. destruct (IH (from + 2 ^ k)%nat) as [D2 E2]. split.
      - simpl. rewrite D1, D2. lia.
      - change (true_sum (in_pairs x δ (S k) from)) with (true_sum (in_pairs x δ k from)
          + true_sum (in_pairs x δ k (from + 2 ^ k)%nat)).
        rewrite E1, E2. replace (2 ^ S k)%nat with (2 ^ k + 2 ^ k)%nat by (simpl; lia). rewrite sum_add. f_equal.
        apply sum_ext; intros i _. f_equal. lia. }
    exact (H O).
Qed.
