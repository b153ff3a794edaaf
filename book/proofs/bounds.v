(** * How much gets through a softmax (chapter 3)

    Inequalities: what a row passes back is limited by its weights, by the range of dP, and by half the length of dP.
    All of them hold for masked rows too, and for dead ones. *)

From attnbook Require Export softmax.

Section row.
  (** One row of weights: none is negative, and they sum to 1, or all are 0. *)
  Context (n : nat) (p : nat -> R).
  Hypothesis Hp : forall j, (j < n)%nat -> 0 <= p j.
  Hypothesis Hrows : forall x : nat -> R, ∑ j < n, p j * (x j - ∑ k < n, p k * x k) = 0.
  Hypothesis Hsum : sum n p <= 1.

  Definition average (x : nat -> R) : R := ∑ k < n, p k * x k.
  Definition back_of_row (x : nat -> R) : nat -> R := fun j => p j * (x j - average x).
  Definition pair (x y : nat -> R) : R := ∑ j < n, x j * y j.

  Lemma pair_back_comm x y : pair x (back_of_row y) = pair (back_of_row x) y.
  Proof.
    unfold pair, back_of_row. transitivity (∑ j < n, (p j * x j * y j - average y * (p j * x j)));
      [apply sum_ext; intros; ring|].
    transitivity (∑ j < n, (p j * x j * y j - average x * (p j * y j))); [|apply sum_ext; intros; ring].
    rewrite !sum_minus, <- !sum_l. fold (average x) (average y). ring.
  Qed.

  Lemma pair_comm x y : pair x y = pair y x.
  Proof. apply sum_ext; intros. ring. Qed.

  (** The inner product with what comes back is a variance, around the average or, larger, around any other number. *)
  Lemma variance x : pair x (back_of_row x) = ∑ j < n, p j * (x j - average x) ^ 2.
  Proof.
    pose proof (Hrows x) as H. fold (average x) in H.
    transitivity (pair x (back_of_row x) - average x * ∑ j < n, p j * (x j - average x)); [rewrite H; ring|].
    unfold pair, back_of_row. rewrite sum_l, <- sum_minus. apply sum_ext; intros. ring.
  Qed.

  Lemma variance_nonneg x : 0 <= pair x (back_of_row x).
  Proof. rewrite variance. apply sum_nonneg. intros j Hj. apply Rmult_le_pos; [now apply Hp|apply pow2_ge_0]. Qed.

  Lemma variance_around c x : pair x (back_of_row x) <= ∑ j < n, p j * (x j - c) ^ 2.
  Proof.
    rewrite variance. pose proof (Hrows x) as H. fold (average x) in H.
    apply (Rle_trans _ (∑ j < n, (p j * (x j - average x) ^ 2 + (average x - c) ^ 2 * p j) + 2 * (average x - c)
      * ∑ j < n, p j * (x j - average x))).
    - rewrite H, sum_plus, <- sum_l.
      assert (0 <= (average x - c) ^ 2 * sum n p) by (apply Rmult_le_pos; [apply pow2_ge_0|now apply sum_nonneg]). lra.
    - rewrite sum_l, <- sum_plus. right. apply sum_ext; intros. ring.
  Qed.

  Lemma variance_range lo hi x : lo <= hi -> (forall j, (j < n)%nat -> p j = 0 \/ lo <= x j <= hi) ->
    pair x (back_of_row x) <= 1 / 4 * (hi - lo) ^ 2.
  Proof.
    intros Hlh Hx. eapply Rle_trans; [apply (variance_around ((lo + hi) / 2))|].
    apply (Rle_trans _ (∑ j < n, (1 / 4 * (hi - lo) ^ 2) * p j)).
    - apply sum_le. intros j Hj. specialize (Hp j Hj). destruct (Hx j Hj) as [->|H]; [lra|].
      rewrite (Rmult_comm _ (p j)). apply Rmult_le_compat_l; [exact Hp|]. nra.
    - rewrite <- sum_l. pose proof (pow2_ge_0 (hi - lo)). set (r := (hi - lo) ^ 2) in *. nra.
  Qed.
End row.

(** A sequence that is not empty has a smallest and a largest entry. *)
Lemma extremes n (x : nat -> R) : (0 < n)%nat ->
  exists a b, (a < n)%nat /\ (b < n)%nat /\ forall j, (j < n)%nat -> x a <= x j <= x b.
Proof.
  induction n as [|n IH]; [lia|]. intros _. destruct (Nat.eq_dec n 0) as [->|Hn].
  - exists 0%nat, 0%nat. split; [lia|split; [lia|]]. intros j Hj. replace j with 0%nat by lia. lra.
  - destruct (IH ltac:(lia)) as [a [b [Ha [Hb H]]]].
    exists (if Rle_dec (x a) (x n) then a else n), (if Rle_dec (x n) (x b) then b else n).
    destruct (Rle_dec (x a) (x n)), (Rle_dec (x n) (x b)); (split; [lia|split; [lia|]]; intros j Hj;
      pose proof (H a Ha); destruct (Nat.eq_dec j n) as [->|]; [|specialize (H j ltac:(lia))]; lra).
Qed.

Lemma squares n (x : nat -> R) a b : (a < n)%nat -> (b < n)%nat -> 1 / 4 * (x b - x a) ^ 2 <= 1 / 2 * ∑ j < n, x j ^ 2.
Proof.
  intros Ha Hb. destruct (Nat.eq_dec a b) as [->|Hne].
  - pose proof (sum_nonneg n (fun j => x j ^ 2) ltac:(intros; apply pow2_ge_0)). nra.
  - assert (H : x a ^ 2 + x b ^ 2 <= ∑ j < n, x j ^ 2).
    { rewrite <- (sum_δ n a (fun j => x j ^ 2) Ha), <- (sum_δ n b (fun j => x j ^ 2) Hb), <- sum_plus.
      apply sum_le. intros j _. pose proof (pow2_ge_0 (x j)).
      destruct (Nat.eq_dec a j) as [->|H1]; [rewrite δ_same, δ_other by congruence; lra|].
      destruct (Nat.eq_dec b j) as [->|H2]; [rewrite δ_same, δ_other by congruence; lra|].
      rewrite !δ_other by congruence. lra. }
    pose proof (pow2_ge_0 (x a + x b)). nra.
Qed.

Lemma softmax_nonneg {m n} M (S : tensor [m; n]) i j : (j < n)%nat -> 0 <= softmax M S i j.
Proof.
  intro Hj. destruct (M i j) eqn:HM.
  - apply Rdiv_le_0_compat; [apply E_nonneg|now apply (Z_pos M S i j)].
  - rewrite softmax_forbidden by exact HM. lra.
Qed.

Lemma softmax_row_at_most_1 {m n} M (S : tensor [m; n]) i : sum n (softmax M S i) <= 1.
Proof.
  destruct (live_or_dead M n i) as [HL|HD].
  - right. exact (softmax_sum M S i HL).
  - rewrite sum_0; [lra|]. intros j Hj. now apply softmax_forbidden, HD.
Qed.

(** ** The chapter's theorems *)

(** The product of a row of dP with its dS is a variance. It is at most a quarter of the squared range of dP over the
    allowed keys, and at most half the squared length of dP. *)
Theorem eq_softmax_jacobian_bound n_q n_k (M : mask) (S dP : tensor [n_q; n_k]) i a b :
  let P := softmax M S in
  let D := ∑ k < n_k, P i k * dP i k in
  let dS := fun j => P i j * (dP i j - D) in
  (a < n_k)%nat -> (b < n_k)%nat -> dP i a <= dP i b ->
  (forall j, (j < n_k)%nat -> M i j = true -> dP i a <= dP i j <= dP i b) ->
  ∑ j < n_k, dP i j * dS j = ∑ j < n_k, P i j * (dP i j - D) ^ 2 /\
  ∑ j < n_k, P i j * (dP i j - D) ^ 2 <= 1 / 4 * (dP i b - dP i a) ^ 2 /\
  1 / 4 * (dP i b - dP i a) ^ 2 <= 1 / 2 * ∑ j < n_k, dP i j ^ 2.
Proof.
  intros P D dS Ha Hb Hab H.
  assert (Hr : forall x : nat -> R, ∑ j < n_k, P i j * (x j - ∑ k < n_k, P i k * x k) = 0)
    by (intro x; exact (centered_rows M S (fun _ => x) i)).
  pose proof (variance n_k (P i) Hr (dP i)) as HV.
  split; [exact HV|split; [|now apply (squares n_k (dP i))]].
  change (∑ j < n_k, P i j * (dP i j - average n_k (P i) (dP i)) ^ 2 <= 1 / 4 * (dP i b - dP i a) ^ 2). rewrite <- HV.
  apply (variance_range n_k (P i)); [intros; now apply softmax_nonneg|exact Hr|apply softmax_row_at_most_1|exact Hab|].
  intros j Hj. destruct (M i j) eqn:HM; [right; now apply H|left; now apply softmax_forbidden].
Qed.

(** What softmax passes back is at most half as long as what it was given. *)
Theorem eq_softmax_half_length n_q n_k (M : mask) (S dP : tensor [n_q; n_k]) i :
  let P := softmax M S in
  let dS := fun j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  sqrt (∑ j < n_k, dS j ^ 2) <= 1 / 2 * sqrt (∑ j < n_k, dP i j ^ 2).
Proof.
  intros P dS. set (p := P i). set (x := dP i).
  assert (Hp : forall j, (j < n_k)%nat -> 0 <= p j) by (intros; now apply softmax_nonneg).
  assert (Hr : forall x : nat -> R, ∑ j < n_k, p j * (x j - ∑ k < n_k, p k * x k) = 0)
    by (intro y; exact (centered_rows M S (fun _ => y) i)).
  assert (Hhalf : forall y, pair n_k y (back_of_row n_k p y) <= 1 / 2 * ∑ j < n_k, y j ^ 2).
  { intro y. destruct (Nat.eq_dec n_k 0) as [E0|Hn].
    - unfold pair. clear - E0. subst n_k. simpl. lra.
    - destruct (extremes n_k y ltac:(lia)) as [a [b [Ha [Hb H]]]].
      eapply Rle_trans; [|apply (squares n_k y a b Ha Hb)].
      apply (variance_range n_k p Hp Hr); [apply softmax_row_at_most_1|pose proof (H a Ha); lra|]. intros j Hj. right.
      now apply H. }
  set (s := back_of_row n_k p x). change dS with s.
  assert (Hss : pair n_k s s = ∑ j < n_k, s j ^ 2) by (apply sum_ext; intros; ring).
  assert (Hlin : forall c j, back_of_row n_k p (fun j => x j - c * s j) j = s j - c * back_of_row n_k p s j).
  { intros c j.
    assert (Ha : average n_k p (fun j => x j - c * s j) = average n_k p x - c * average n_k p s).
    { unfold average. rewrite sum_l, <- sum_minus. apply sum_ext; intros; ring. }
    unfold back_of_row. rewrite Ha.
    transitivity (p j * (x j - average n_k p x) - c * (p j * (s j - average n_k p s))); [ring|reflexivity]. }
  pose proof (variance_nonneg n_k p Hp Hr (fun j => x j - 2 * s j)) as H0.
  assert (Hexp : pair n_k (fun j => x j - 2 * s j) (back_of_row n_k p (fun j => x j - 2 * s j)) =
      pair n_k x (back_of_row n_k p x) - 4 * pair n_k s s + 4 * pair n_k s (back_of_row n_k p s)).
  { transitivity (pair n_k x s - 2 * pair n_k s s - 2 * pair n_k x (back_of_row n_k p s) + 4 * pair n_k s (back_of_row n_k p s)).
    - unfold pair. rewrite !sum_l, <- !sum_minus, <- sum_plus. apply sum_ext; intros j _. rewrite Hlin. ring.
    - rewrite (pair_back_comm n_k p x s). fold s. ring. }
  rewrite Hexp in H0. pose proof (Hhalf x) as H1. pose proof (Hhalf s) as H2. rewrite Hss in H0.
  assert (H3 : ∑ j < n_k, s j ^ 2 <= (1 / 2) ^ 2 * ∑ j < n_k, x j ^ 2) by lra.
  assert (Hx : 0 <= ∑ j < n_k, x j ^ 2) by (apply sum_nonneg; intros; apply pow2_ge_0).
  replace (1 / 2) with (sqrt ((1 / 2) ^ 2)) by (apply sqrt_pow2; lra).
  rewrite <- sqrt_mult; [|apply pow2_ge_0|exact Hx]. now apply sqrt_le_1_alt.
Qed.

(** No score gets more than its weight, times what the weight lacks to 1, times the range of dP over the allowed
    keys. *)
Theorem eq_softmax_dS_bound n_q n_k (M : mask) (S dP : tensor [n_q; n_k]) i j lo hi :
  let P := softmax M S in
  let dS := P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (j < n_k)%nat ->
  (forall k, (k < n_k)%nat -> M i k = true -> lo <= dP i k <= hi) ->
  Rabs dS <= P i j * (1 - P i j) * (hi - lo).
Proof.
  intros P dS Hj H. unfold dS. destruct (M i j) eqn:HM.
  - assert (HL : live M n_k i) by now exists j.
    assert (H1 : sum n_k (P i) = 1) by exact (softmax_sum M S i HL).
    assert (HP : forall k, (k < n_k)%nat -> 0 <= P i k) by (intros; now apply softmax_nonneg).
    assert (Hd : dP i j - ∑ k < n_k, P i k * dP i k = ∑ k < n_k, P i k * (dP i j - dP i k)).
    { transitivity (dP i j * sum n_k (P i) - ∑ k < n_k, P i k * dP i k); [rewrite H1; ring|].
      rewrite sum_l, <- sum_minus. apply sum_ext; intros; ring. }
    assert (Hw : ∑ k < n_k, P i k * (1 - δ j k) * (hi - lo) = (1 - P i j) * (hi - lo)).
    { rewrite <- sum_r. f_equal. rewrite <- H1 at 1. rewrite <- (sum_δ n_k j (P i) Hj), <- sum_minus.
      apply sum_ext; intros; ring. }
    assert (Ht : forall k, (k < n_k)%nat -> - (P i k * (1 - δ j k) * (hi - lo)) <= P i k * (dP i j - dP i k) <= P i k
      * (1 - δ j k) * (hi - lo)).
    { intros k Hk. destruct (Nat.eq_dec j k) as [->|Hne]; [rewrite δ_same; lra|]. rewrite δ_other by exact Hne.
      destruct (M i k) eqn:HM'; [|unfold P; rewrite softmax_forbidden by exact HM'; lra].
      pose proof (H j Hj HM). pose proof (H k Hk HM'). specialize (HP k Hk). split; nra. }
    rewrite Rabs_mult, (Rabs_pos_eq (P i j)) by auto. rewrite Rmult_assoc. apply Rmult_le_compat_l; [auto|].
    rewrite Hd, <- Hw. apply Rabs_le. split.
    + rewrite <- sum_opp. apply sum_le. intros k Hk. apply (proj1 (Ht k Hk)).
    + apply sum_le. intros k Hk. apply (proj2 (Ht k Hk)).
  - unfold P. rewrite (softmax_forbidden M S i j HM), !Rmult_0_l, Rabs_R0. lra.
Qed.

(** L is a smooth maximum: between the row's largest score and that plus ln n_k. *)
Theorem logsumexp_is_a_smooth_maximum n_q n_k (M : mask) (S : tensor [n_q; n_k]) i a :
  (a < n_k)%nat -> M i a = true ->
  (forall k, (k < n_k)%nat -> M i k = true -> S i k <= S i a) ->
  S i a <= logsumexp M S i <= S i a + ln (INR n_k).
Proof.
  intros Ha HM H. pose proof (Z_pos M S i a Ha HM) as HZ.
  assert (H1 : exp (S i a) <= Z M S i).
  { replace (exp (S i a)) with (E M S i a) by (unfold E; now rewrite HM).
    rewrite <- (sum_δ n_k a (E M S i) Ha). apply sum_le. intros k _. pose proof (E_nonneg M S i k).
    destruct (Nat.eq_dec a k) as [->|Hne]; [rewrite δ_same; lra|rewrite δ_other by exact Hne; lra]. }
  assert (H2 : Z M S i <= INR n_k * exp (S i a)).
  { rewrite <- sum_const. apply sum_le. intros k Hk. unfold E. destruct (M i k) eqn:HM'.
    - destruct (Rle_lt_or_eq_dec _ _ (H k Hk HM')) as [Hlt| ->]; [apply Rlt_le, exp_increasing, Hlt|lra].
    - apply Rlt_le, exp_pos. }
  assert (Hn : 0 < INR n_k) by (apply lt_0_INR; lia). pose proof (exp_pos (S i a)) as He. split.
  - rewrite <- (ln_exp (S i a)). now apply ln_le.
  - rewrite Rplus_comm, <- (ln_exp (S i a)), <- ln_mult by assumption. now apply ln_le.
Qed.
