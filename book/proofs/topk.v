(** * Blocks, and the k best keys (chapter 9)

    Blocks are a mask that is given. A choice of keys by their scores is a mask that depends on the scores: where no
    small step changes the choice, it goes back like one that was given. *)

From attnbook Require Export steps.

(** ** Blocks *)

Definition blocks (size : nat) (live_block : nat -> nat -> bool) : mask :=
  fun i j => live_block (i / size)%nat (j / size)%nat.

(** A block is live or dead as a whole: in a live one all weights are positive, in a dead one all weights and all of dS
    are exactly 0. *)
Theorem eq_op_blocks n_q n_k size (live_block : nat -> nat -> bool) (S dP : tensor [n_q; n_k]) a b i j :
  let P := softmax (blocks size live_block) S in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (i < size)%nat -> (j < size)%nat -> (b * size + j < n_k)%nat ->
  (live_block a b = true -> 0 < P (a * size + i)%nat (b * size + j)%nat) /\
  (live_block a b = false -> P (a * size + i)%nat (b * size + j)%nat = 0 /\
    dS (a * size + i)%nat (b * size + j)%nat = 0).
Proof.
  intros P dS Hi Hj Hb.
  assert (HM : blocks size live_block (a * size + i)%nat (b * size + j)%nat = live_block a b).
  { unfold blocks. f_equal; rewrite Nat.add_comm, Nat.div_add, Nat.div_small; lia. }
  split; intro H; rewrite <- HM in H.
  - now apply softmax_live_pos.
  - split; [now apply softmax_forbidden|exact (centered_forbidden _ S dP _ _ H)].
Qed.

(** ** The k best keys *)

Fixpoint count (n : nat) (f : nat -> bool) : nat :=
  match n with
  | O => O
  | S m => (count m f + if f m then 1 else 0)%nat
  end.

Lemma count_le n f g : (forall j, (j < n)%nat -> f j = true -> g j = true) -> (count n f <= count n g)%nat.
Proof.
  intro H. induction n as [|n IH]; simpl; [lia|]. specialize (IH (fun j Hj => H j (Nat.lt_lt_succ_r _ _ Hj))).
  pose proof (H n (Nat.lt_succ_diag_r n)) as Hn. destruct (f n), (g n); first [lia|discriminate (Hn eq_refl)].
Qed.

Lemma count_lt n f g j :
  (forall j, (j < n)%nat -> f j = true -> g j = true) -> (j < n)%nat -> f j = false -> g j = true ->
    (count n f < count n g)%nat.
Proof.
  intros H Hj Hf Hg. induction n as [|n IH]; [lia|]. simpl.
  assert (H' : forall j, (j < n)%nat -> f j = true -> g j = true) by (intros; apply H; auto).
  destruct (Nat.eq_dec j n) as [->|Hne].
  - rewrite Hf, Hg. pose proof (count_le n f g H'). lia.
  - specialize (IH H' ltac:(lia)). pose proof (H n (Nat.lt_succ_diag_r n)) as Hn. destruct (f n), (g n);
      first [lia|discriminate (Hn eq_refl)].
Qed.

Definition less (a b : R) : bool := if Rlt_dec a b then true else false.

Lemma less_true a b : less a b = true <-> a < b.
Proof. unfold less. destruct (Rlt_dec a b); split; auto; discriminate. Qed.

(** The k best of the allowed keys of a row: those that fewer than k allowed keys exceed, that is, whose score is at
    least the k-th largest. At a tie for the k-th place there are more than k. *)
Definition top_k {m n} (k : nat) (M : mask) (S : tensor [m; n]) : mask :=
  fun i j => M i j && (count n (fun l => M i l && less (S i j) (S i l)) <? k).

Lemma top_k_true {m n} k M (S : tensor [m; n]) i j :
  top_k k M S i j = true <-> M i j = true /\ (count n (fun l => M i l && less (S i j) (S i l)) < k)%nat.
Proof. unfold top_k. now rewrite andb_true_iff, Nat.ltb_lt. Qed.

(** If no strict order of two scores is turned around, and there was no tie for the k-th place, the choice stays. *)
Lemma choice_stays {m n} k M (S S' : tensor [m; n]) i :
  (count n (top_k k M S i) <= k)%nat ->
  (forall j l, (j < n)%nat -> (l < n)%nat -> S i j < S i l -> S' i j < S' i l) ->
  forall j, (j < n)%nat -> top_k k M S' i j = top_k k M S i j.
Proof.
  intros Htie H j Hj. destruct (M i j) eqn:HM; [|unfold top_k; now rewrite HM].
  destruct (top_k k M S i j) eqn:HT.
  - apply top_k_true. split; [exact HM|]. apply Nat.lt_le_trans with (2 := Htie).
    apply (count_lt n _ _ j); [|exact Hj| |exact HT].
    + intros l Hl Hless. apply andb_true_iff in Hless. destruct Hless as [HMl Hless]. apply less_true in Hless.
      apply top_k_true. split; [exact HMl|]. apply top_k_true in HT. destruct HT as [_ HT].
      apply Nat.le_lt_trans with (2 := HT). apply count_le. intros l' Hl' H'. apply andb_true_iff in H'.
      destruct H' as [HMl' H']. apply less_true in H'. rewrite HMl'. simpl. apply less_true.
      destruct (Rlt_dec (S i l) (S i j)) as [Hlt|Hge]; [|lra].
      pose proof (H l j Hl Hj Hlt). lra.
    + rewrite HM. simpl. unfold less. destruct (Rlt_dec (S' i j) (S' i j)); [lra|reflexivity].
  - destruct (top_k k M S' i j) eqn:HT'; [|reflexivity]. exfalso. apply top_k_true in HT'. destruct HT' as [_ HT'].
    assert (HN : ~ (count n (fun l => M i l && less (S i j) (S i l)) < k)%nat).
    { intro Hc. assert (top_k k M S i j = true) by (apply top_k_true; auto). congruence. }
    apply HN. apply Nat.le_lt_trans with (2 := HT'). apply count_le. intros l Hl Hless.
    apply andb_true_iff in Hless. destruct Hless as [HMl Hless]. rewrite HMl. simpl. apply less_true.
    apply less_true in Hless.
    now apply H.
Qed.

(** ** Near a time, all strict orders stay *)

Lemma locally_all (t : R) n (A : nat -> R -> Prop) :
  (forall i, (i < n)%nat -> locally t (A i)) -> locally t (fun u => forall i, (i < n)%nat -> A i u).
Proof.
  intro H. induction n as [|n IH].
  - apply filter_forall. intros u i Hi. lia.
  - apply (filter_imp (fun u => (forall i, (i < n)%nat -> A i u) /\ A n u)).
    + intros u [Hu Hn] i Hi. destruct (Nat.eq_dec i n) as [->|]; [exact Hn|apply Hu; lia].
    + apply filter_and; [apply IH; auto|apply H; auto].
Qed.

Lemma order_stays (f g : R -> R) t a b :
  is_derive f t a -> is_derive g t b -> locally t (fun u => f t < g t -> f u < g u).
Proof.
  intros Hf Hg. destruct (Rlt_dec (f t) (g t)) as [H|H]; [|apply filter_forall; tauto].
  assert (Hc : continuous (fun u => g u - f u) t).
  { apply (ex_derive_continuous (fun u => g u - f u)). exists (b - a). exact (derive_minus g f t b a Hg Hf). }
  apply (filter_imp (fun u => 0 < g u - f u)); [intros; lra|].
  apply (Hc (fun y => 0 < y)). apply (open_gt 0). lra.
Qed.

Lemma softmax_same_mask {m n} (M M' : mask) (S : tensor [m; n]) i j :
  (forall j, (j < n)%nat -> M i j = M' i j) -> (j < n)%nat -> softmax M S i j = softmax M' S i j.
Proof.
  intros H Hj. unfold softmax, Z. assert (HE : forall k, (k < n)%nat -> E M S i k = E M' S i k)
    by (intros; unfold E; now rewrite H).
  rewrite HE by exact Hj. f_equal. now apply sum_ext.
Qed.

Lemma top_k_moves {m n} k M (s : R -> tensor [m; n]) t tS :
  (forall i, (i < m)%nat -> (count n (top_k k M (s t) i) <= k)%nat) -> moves s t tS ->
  moves (s := [m; n]) (fun u => softmax (top_k k M (s u)) (s u)) t (centered (softmax (top_k k M (s t)) (s t)) tS).
Proof.
  intros Htie H i Hi j Hj.
  apply (is_derive_ext_loc (fun u => softmax (top_k k M (s t)) (s u) i j)).
  - apply (filter_imp (fun u => forall a, (a < n)%nat -> forall b, (b < n)%nat -> s t i a < s t i b ->
      s u i a < s u i b)).
    + intros u Hu. apply softmax_same_mask; [|exact Hj]. intros j' Hj'. symmetry.
      apply (choice_stays k M (s t) (s u) i); auto.
    + apply (locally_all t n (fun a u => forall b, (b < n)%nat -> s t i a < s t i b -> s u i a < s u i b)). intros a Ha.
      apply (locally_all t n (fun b u => s t i a < s t i b -> s u i a < s u i b)). intros b Hb.
      apply (order_stays (fun u => s u i a) (fun u => s u i b) t (tS i a) (tS i b)); now apply H.
  - exact (softmax_moves (top_k k M (s t)) s t tS H i Hi j Hj).
Qed.

(** Where there is no tie for the k-th place, top-k goes back as a mask that was given, in the whole head: a key that
    was not chosen has dS = 0 and is told nothing. *)
Theorem eq_op_blocks__top n_q n_k d_k d_v k (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let S := scores scale Q K B in
  let P := softmax (top_k k M S) S in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i, (i < n_q)%nat -> (count n_k (top_k k M S i) <= k)%nat) ->
  gradient ℓ (P × V) dO ->
  gradient (fun Q => let S := scores scale Q K B in ℓ (softmax (top_k k M S) S × V)) Q (scale • (dS × K)) /\
  gradient (fun K => let S := scores scale Q K B in ℓ (softmax (top_k k M S) S × V)) K (scale • (dS^T × Q)) /\
  gradient (fun V => ℓ (P × V)) V (P^T × dO) /\
  gradient (fun B => let S := scores scale Q K B in ℓ (softmax (top_k k M S) S × V)) B dS /\
  (forall i j, top_k k M S i j = false -> dS i j = 0).
Proof.
  intros S P dP dS Htie H.
  pose proof (around_any_step n_q n_k d_k d_v scale Q K V B (fun S => softmax (top_k k M S) S) (centered P) ℓ dO) as HW.
  cbv zeta in HW. destruct HW as [HQ [HK [HV [HB _]]]]; [|exact H|].
  - intros ℓ' dP'. apply (backward (fun S => softmax (top_k k M S) S) S (centered P) ℓ' dP'); [|apply centered_adjoint].
    intros x t tX Hx Ht. unfold P. rewrite <- Hx. apply top_k_moves; [now rewrite Hx|exact Ht].
  - exact (conj HQ (conj HK (conj HV (conj HB (centered_forbidden (top_k k M S) S dP))))).
Qed.
