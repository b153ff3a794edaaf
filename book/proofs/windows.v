(** * Windows, global tokens, packed documents (chapter 9)

    All of them are masks, so every theorem about a head holds for them as it stands. What is left to say is which pairs
    are live, and where gradients cannot come from. *)

From Coq Require Import ZArith.
From attnbook Require Export steps.

(** The type of whole numbers; Z is the sum under the softmax's fraction. *)
Notation integer := BinNums.Z.

(** ** What every mask does *)

(** Forbidden pairs may be left out of the sums of a gradient. *)
Lemma live_terms n (M : nat -> bool) (f : nat -> R) :
  (forall i, (i < n)%nat -> M i = false -> f i = 0) -> ∑ i < n, f i = ∑ i < n, if M i then f i else 0.
Proof. intro H. apply sum_ext; intros i Hi. destruct (M i) eqn:HM; [reflexivity|now apply H]. Qed.

(** ** Windows *)

Definition window (left right shift : integer) : mask :=
  fun i j => ((- left <=? Z.of_nat j - Z.of_nat i - shift) && (Z.of_nat j - Z.of_nat i - shift <=? right))%Z.

Lemma window_true left right shift i j :
  window left right shift i j = true <-> (- left <= Z.of_nat j - Z.of_nat i - shift <= right)%Z.
Proof. unfold window. rewrite andb_true_iff, !Z.leb_le. tauto. Qed.

Lemma window_false left right shift i j :
  ~ (- left <= Z.of_nat j - Z.of_nat i - shift <= right)%Z -> window left right shift i j = false.
Proof. rewrite <- window_true. now destruct (window left right shift i j). Qed.

(** Inside the window every weight is positive. Outside of it the weight and dS are exactly 0. *)
Theorem eq_op_window n_q n_k (left right shift : integer) (S dP : tensor [n_q; n_k]) i j :
  let P := softmax (window left right shift) S in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (j < n_k)%nat ->
  ((- left <= Z.of_nat j - Z.of_nat i - shift <= right)%Z -> 0 < P i j) /\
  (~ (- left <= Z.of_nat j - Z.of_nat i - shift <= right)%Z -> P i j = 0 /\ dS i j = 0).
Proof.
  intros P dS Hj. split; intro H.
  - apply softmax_live_pos; [exact Hj|now apply window_true].
  - apply window_false in H. split; [now apply softmax_forbidden|].
    exact (centered_forbidden (window left right shift) S dP i j H).
Qed.

(** The inequality of a window turned around: which queries a key hears from. *)
Theorem eq_var_window_queries (left right shift i j : integer) :
  (- left <= j - i - shift <= right <-> (i >= j - shift - right /\ i <= j - shift + left))%Z.
Proof. lia. Qed.

(** In the gradients of key j and value j, only the queries count whose window holds j. *)
Theorem eq_var_window_queries__gradients n_q n_k d_k d_v (left right shift : integer) scale (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let M := window left right shift in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let hears i j := ((Z.of_nat j - shift - right <=? Z.of_nat i) && (Z.of_nat i <=? Z.of_nat j - shift + left))%Z in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun K => ℓ (attention M scale Q K V B)) K
    (fun j l => scale * ∑ i < n_q, if hears i j then dS i j * Q i l else 0) /\
  gradient (fun V => ℓ (attention M scale Q K V B)) V (fun j l => ∑ i < n_q, if hears i j then P i j * dO i l else 0).
Proof.
  intros M P dP dS hears H.
  assert (HM : forall i j, hears i j = false -> M i j = false).
  { intros i j Hh. apply window_false. unfold hears in Hh. rewrite andb_false_iff, !Z.leb_gt in Hh. lia. }
  assert (H0 : forall i j, M i j = false -> dS i j = 0) by exact (centered_forbidden M (scores scale Q K B) dP).
  split.
  - refine (gradient_ext _ _ _ _ _ (gradient_K M scale Q K V B ℓ dO H)). intros j _ l _. simpl.
    unfold scaled, matmul, transpose. f_equal. apply (live_terms n_q (fun i => hears i j) (fun i => dS i j * Q i l)).
    intros i _ Hh. rewrite (H0 i j) by now apply HM. ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_V M scale Q K V B ℓ dO H)). intros j _ l _. simpl.
    unfold matmul, transpose. apply (live_terms n_q (fun i => hears i j) (fun i => P i j * dO i l)). intros i _ Hh.
    unfold P, weights. rewrite softmax_forbidden by now apply HM. ring.
Qed.

(** A key that every query of the call leaves behind by more than left has dK and dV of exactly 0: it may leave the
    cache. *)
Theorem key_left_behind n_q n_k d_k d_v (left right shift : integer) scale (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) j :
  let M := window left right shift in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i, (i < n_q)%nat -> (Z.of_nat i > Z.of_nat j - shift + left)%Z) ->
  (forall l, (scale • (dS^T × Q)) j l = 0) /\ (forall l, (P^T × dO) j l = 0).
Proof.
  intros M P dP dS H.
  assert (HM : forall i, (i < n_q)%nat -> M i j = false) by (intros i Hi; apply window_false; specialize (H i Hi); lia).
  split; intro l; unfold scaled, matmul, transpose.
  - rewrite sum_0; [ring|]. intros i Hi.
    assert (H0 : dS i j = 0) by exact (centered_forbidden M (scores scale Q K B) dP i j (HM i Hi)). rewrite H0. ring.
  - apply sum_0. intros i Hi. unfold P, weights. rewrite softmax_forbidden by now apply HM. ring.
Qed.

(** ** Global tokens *)

Definition with_global (n_g : nat) (shift : integer) (M : mask) : mask :=
  fun i j => M i j || ((0 <=? Z.of_nat i + shift) && (Z.of_nat i + shift <? Z.of_nat n_g))%Z || (j <? n_g).

(** A global query sees every key, a global key is seen by every query, and other pairs are as they were. With one
    global key no row is dead, so all rows of weights sum to 1. *)
Theorem eq_var_global n_q n_k n_g shift (M : mask) (S : tensor [n_q; n_k]) :
  let M' := with_global n_g shift M in
  (forall i j, M' i j = true <-> M i j = true \/ (0 <= Z.of_nat i + shift < Z.of_nat n_g)%Z \/ (j < n_g)%nat) /\
  ((0 < n_g)%nat -> (0 < n_k)%nat -> forall i, ∑ j < n_k, softmax M' S i j = 1).
Proof.
  intro M'. assert (H : forall i j, M' i j = true <-> M i j = true \/ (0 <= Z.of_nat i + shift < Z.of_nat n_g)%Z \/
    (j < n_g)%nat).
  { intros i j. unfold M', with_global. rewrite !orb_true_iff, andb_true_iff, Z.leb_le, Z.ltb_lt, Nat.ltb_lt. tauto. }
  split; [exact H|]. intros Hg Hk i. apply softmax_sum. exists 0%nat. split; [exact Hk|]. apply H. now right; right.
Qed.

(** ** Packed documents *)

Definition segments (doc_q doc_k place_q place_k : nat -> nat) : mask :=
  fun i j => (doc_q i =? doc_k j) && (place_k j <=? place_q i).

Lemma segments_true doc_q doc_k place_q place_k i j :
  segments doc_q doc_k place_q place_k i j = true <-> doc_q i = doc_k j /\ (place_k j <= place_q i)%nat.
Proof. unfold segments. now rewrite andb_true_iff, Nat.eqb_eq, Nat.leb_le. Qed.

Lemma segments_other doc_q doc_k place_q place_k i j :
  doc_q i <> doc_k j -> segments doc_q doc_k place_q place_k i j = false.
Proof. intro H. unfold segments. destruct (Nat.eqb_spec (doc_q i) (doc_k j)); [contradiction|reflexivity]. Qed.

(** Packed documents: a query puts a positive weight on each key of its own document that does not come after its place.
    For all other pairs the weight and dS are exactly 0. *)
Theorem eq_op_segments n_q n_k (doc_q doc_k place_q place_k : nat -> nat) (S dP : tensor [n_q; n_k]) i j :
  let P := softmax (segments doc_q doc_k place_q place_k) S in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (j < n_k)%nat ->
  (doc_q i = doc_k j /\ (place_k j <= place_q i)%nat -> 0 < P i j) /\
  (~ (doc_q i = doc_k j /\ (place_k j <= place_q i)%nat) -> P i j = 0 /\ dS i j = 0).
Proof.
  intros P dS Hj. rewrite <- segments_true. split; intro H.
  - now apply softmax_live_pos.
  - apply not_true_is_false in H. split; [now apply softmax_forbidden|exact (centered_forbidden _ S dP i j H)].
Qed.

(** In packed documents all products fall into blocks: a query, a key and a value hear from their own document alone. *)
Theorem eq_op_segments__gradients n_q n_k d_k d_v (doc_q doc_k place_q place_k : nat -> nat) scale
    (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let M := segments doc_q doc_k place_q place_k in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q
    (fun i l => scale * ∑ j < n_k, if doc_q i =? doc_k j then dS i j * K j l else 0) /\
  gradient (fun K => ℓ (attention M scale Q K V B)) K
    (fun j l => scale * ∑ i < n_q, if doc_q i =? doc_k j then dS i j * Q i l else 0) /\
  gradient (fun V => ℓ (attention M scale Q K V B)) V
    (fun j l => ∑ i < n_q, if doc_q i =? doc_k j then P i j * dO i l else 0).
Proof.
  intros M P dP dS H.
  assert (HM : forall i j, (doc_q i =? doc_k j) = false -> M i j = false).
  { intros i j Hd. apply segments_other. now apply Nat.eqb_neq. }
  assert (H0 : forall i j, M i j = false -> dS i j = 0) by exact (centered_forbidden M (scores scale Q K B) dP).
  repeat apply conj.
  - refine (gradient_ext _ _ _ _ _ (gradient_Q M scale Q K V B ℓ dO H)). intros i _ l _. simpl.
    unfold scaled, matmul. f_equal. apply (live_terms n_k (fun j => doc_q i =? doc_k j) (fun j => dS i j * K j l)).
    intros j _ Hd. rewrite (H0 i j) by now apply HM. ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_K M scale Q K V B ℓ dO H)). intros j _ l _. simpl.
    unfold scaled, matmul, transpose. f_equal.
    apply (live_terms n_q (fun i => doc_q i =? doc_k j) (fun i => dS i j * Q i l)).
    intros i _ Hd. rewrite (H0 i j) by now apply HM. ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_V M scale Q K V B ℓ dO H)). intros j _ l _. simpl.
    unfold matmul, transpose. apply (live_terms n_q (fun i => doc_q i =? doc_k j) (fun i => P i j * dO i l)).
    intros i _ Hd.
    unfold P, weights. rewrite softmax_forbidden by now apply HM. ring.
Qed.

(** Packed documents do not leak forward: the outputs of a document stay when the keys and values of all others change.
    *)
Theorem documents_do_not_leak n_q n_k d_k d_v (doc_q doc_k place_q place_k : nat -> nat) scale (Q : tensor [n_q; d_k])
    (K K' : tensor [n_k; d_k]) (V V' : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) i l :
  let M := segments doc_q doc_k place_q place_k in
  (forall j, doc_k j = doc_q i -> (forall l, K j l = K' j l) /\ (forall l, V j l = V' j l)) ->
  attention M scale Q K V B i l = attention M scale Q K' V' B i l.
Proof.
  intros M H.
  assert (HE : forall j, E M (scores scale Q K B) i j = E M (scores scale Q K' B) i j).
  { intro j. unfold E. destruct (M i j) eqn:HM; [|reflexivity]. f_equal. unfold scores, add, scaled, matmul, transpose.
    f_equal. f_equal. apply sum_ext; intros a _. f_equal. apply H.
    unfold M, segments in HM. apply andb_true_iff in HM. destruct HM as [HM _]. now apply Nat.eqb_eq in HM. }
  unfold attention, matmul. apply sum_ext; intros j _. unfold weights, softmax.
  replace (Z M (scores scale Q K' B) i) with (Z M (scores scale Q K B) i) by (apply sum_ext; intros; apply HE).
  rewrite HE. destruct (Nat.eq_dec (doc_k j) (doc_q i)) as [Hd|Hd].
  - f_equal. now apply H.
  - rewrite E_forbidden; [unfold Rdiv; ring|]. apply segments_other. congruence.
Qed.
