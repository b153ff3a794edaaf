(** * Tiles (chapter 11)

    The keys in parts, of any number and any sizes, in any order: what a part keeps of a row, how two parts are merged,
    and why the backward may be added up tile by tile. A part may have no allowed key in a row. Then its sums are 0, and
    its height m is any number: there is no −∞ in here. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export numerics.

(** An entry of an array is a number; [ring] has to be told so. *)
Ltac real := apply (Rplus_eq_reg_r 0); ring.

(** ** The state of one row *)

(** m, Z and A: a height, the sum of the exponentials above it, the values weighted with them. *)
Record row_state := State { m_of : R; Z_of : R; A_of : nat -> R }.

(** The state s knows the keys J, out of n: its sums are theirs, measured from its height, whatever that is. *)
Definition knows (n : nat) (J : nat -> bool) (S : tensor [n]) (V : nat -> nat -> R) (s : row_state) : Prop :=
  Z_of s = (∑ j < n, (if J j then exp (S j - m_of s) else 0)) /\
  forall l, A_of s l = ∑ j < n, (if J j then exp (S j - m_of s) * V j l else 0).

(** The book's state measures from the highest score. *)
Definition highest (n : nat) (J : nat -> bool) (S : tensor [n]) (m : R) : Prop :=
  (forall j, (j < n)%nat -> J j = true -> S j <= m) /\ exists j, (j < n)%nat /\ J j = true /\ S j = m.

Definition disjoint (n : nat) (J J' : nat -> bool) : Prop := forall j, (j < n)%nat -> J j && J' j = false.

Definition merge_states (s s' : row_state) : row_state :=
  let m := Rmax (m_of s) (m_of s') in
  State m (exp (m_of s - m) * Z_of s + exp (m_of s' - m) * Z_of s')
    (fun l => exp (m_of s - m) * A_of s l + exp (m_of s' - m) * A_of s' l).

(** A sum from another height, and over two sets of keys. *)
Lemma fade n (J : nat -> bool) (S : tensor [n]) (f : nat -> R) m m' :
  exp (m - m') * (∑ j < n, (if J j then exp (S j - m) * f j else 0))
    = ∑ j < n, (if J j then exp (S j - m') * f j else 0).
Proof.
  rewrite sum_l. apply sum_ext; intros j _. destruct (J j); [|ring].
  rewrite <- Rmult_assoc, <- exp_plus. do 2 f_equal. ring.
Qed.

Lemma fade_1 n (J : nat -> bool) (S : tensor [n]) m m' :
  exp (m - m') * (∑ j < n, (if J j then exp (S j - m) else 0)) = ∑ j < n, (if J j then exp (S j - m') else 0).
Proof.
  pose proof (fade n J S (fun _ => 1) m m') as H. rewrite (sum_ext n (fun j => if J j then exp (S j - m) else 0)
    (fun j => if J j then exp (S j - m) * 1 else 0)), H by (intros; destruct (J i); ring).
  apply sum_ext; intros j _. destruct (J j); ring.
Qed.

Lemma sum_union n (J J' : nat -> bool) (f : nat -> R) : disjoint n J J' ->
  ∑ j < n, (if J j || J' j then f j else 0) = (∑ j < n, (if J j then f j else 0)) + ∑ j < n, (if J' j then f j else 0).
Proof.
  intro H. rewrite <- sum_plus. apply sum_ext; intros j Hj. specialize (H j Hj).
  destruct (J j), (J' j); try discriminate; simpl; ring.
Qed.

Lemma merge_knows n J J' (S : tensor [n]) V s s' :
  disjoint n J J' -> knows n J S V s -> knows n J' S V s' -> knows n (fun j => J j || J' j) S V (merge_states s s').
Proof.
  intros HJ [HZ HA] [HZ' HA']. split; simpl.
  - now rewrite HZ, HZ', !fade_1, sum_union.
  - intro l. now rewrite HA, HA', !fade, sum_union.
Qed.

(** ** The online softmax *)

(** A new height is one factor for all terms, and at most 1 when the height rises. *)
Theorem eq_tile_fade (S : nat -> R) m h j :
  let m' := Rmax m h in
  exp (S j - m') = exp (m - m') * exp (S j - m) /\ exp (m - m') <= 1.
Proof.
  intro m'. split; [rewrite <- exp_plus; f_equal; ring|]. rewrite <- exp_0.
  destruct (Rle_lt_or_eq_dec (m - m') 0) as [H|H]; [unfold m'; pose proof (Rmax_l m h); lra|left;
    now apply exp_increasing|right; now rewrite H].
Qed.

(** Old sums fade, and the new block J' is added: these are the sums over all keys seen so far, at the new height. *)
Theorem eq_tile_online n d (J J' : nat -> bool) (S : tensor [n]) (V : tensor [n; d]) m m' l :
  let Z := ∑ j < n, (if J j then exp (S j - m) else 0) in
  let A := fun l => ∑ j < n, (if J j then exp (S j - m) * V j l else 0) in
  disjoint n J J' ->
  exp (m - m') * Z + (∑ j < n, (if J' j then exp (S j - m') else 0))
    = (∑ j < n, (if J j || J' j then exp (S j - m') else 0)) /\
  exp (m - m') * A l + (∑ j < n, (if J' j then exp (S j - m') * V j l else 0))
    = ∑ j < n, (if J j || J' j then exp (S j - m') * V j l else 0).
Proof.
  intros Z A H. split.
  - unfold Z. rewrite fade_1. symmetry. apply (sum_union n J J' (fun j => exp (S j - m')) H).
  - unfold A. rewrite (fade n J S (fun j => V j l)). symmetry.
    apply (sum_union n J J' (fun j => exp (S j - m') * V j l) H).
Qed.

(** Two parts with no key in common: their states, faded to the higher of the two heights and added, know the union. *)
Theorem eq_tile_merge n d (J J' : nat -> bool) (S : tensor [n]) (V : tensor [n; d]) m Z A m' Z' A' :
  let m'' := Rmax m m' in
  disjoint n J J' -> knows n J S V (State m Z A) -> knows n J' S V (State m' Z' A') ->
  knows n (fun j => J j || J' j) S V
    (State m'' (exp (m - m'') * Z + exp (m' - m'') * Z') (fun l => exp (m - m'') * A l + exp (m' - m'') * A' l)) /\
  (highest n J S m -> highest n J' S m' -> highest n (fun j => J j || J' j) S m'').
Proof.
  intros m'' HJ H H'. split; [exact (merge_knows n J J' S V _ _ HJ H H')|].
  intros [Hle [j [Hj [HJj Hm]]]] [Hle' [j' [Hj' [HJj' Hm']]]]. split.
  - intros k Hk Ho. apply orb_prop in Ho. unfold m''. pose proof (Rmax_l m m'). pose proof (Rmax_r m m').
    destruct Ho as [Ho|Ho]; [pose proof (Hle k Hk Ho)|pose proof (Hle' k Hk Ho)]; lra.
  - unfold m'', Rmax. destruct (Rle_dec m m').
    + exists j'. rewrite HJj', orb_true_r. auto.
    + exists j. rewrite HJj. auto.
Qed.

(** The two parts of a merge may change places. *)
Theorem merge_is_commutative (s s' : row_state) : merge_states s s' = merge_states s' s.
Proof.
  unfold merge_states. rewrite (Rmax_comm (m_of s') (m_of s)). f_equal; [apply Rplus_comm|].
  apply functional_extensionality. intro l. apply Rplus_comm.
Qed.

(** Of three parts it does not matter which two are merged first. *)
Theorem merge_is_associative (s s' s'' : row_state) : merge_states (merge_states s s') s'' = merge_states s (merge_states s' s'').
Proof.
  unfold merge_states. simpl. rewrite Rmax_assoc. set (m := Rmax (Rmax (m_of s) (m_of s')) (m_of s'')).
  assert (H : forall a b x, exp (b - m) * (exp (a - b) * x) = exp (a - m) * x).
  { intros. rewrite <- Rmult_assoc, <- exp_plus. do 2 f_equal. ring. }
  f_equal; [|apply functional_extensionality; intro l]; rewrite !Rmult_plus_distr_l, !H; ring.
Qed.

(** A state that knows all allowed keys of a row has its output, A / Z, and its log-sum-exp, m + log Z. In a dead row A
    / Z is 0/0, read as 0. *)
Theorem eq_tile_end n_q n_k d_v (M : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) i m Z A :
  knows n_k (M i) (S i) V (State m Z A) ->
  (forall l, (softmax M S × V) i l = A l / Z) /\ (live M n_k i -> logsumexp M S i = m + ln Z).
Proof.
  intros [HZ HA]. simpl in HZ, HA.
  assert (HZ0 : softmax.Z M S i = exp m * Z).
  { rewrite HZ, sum_l. apply sum_ext; intros j _. unfold E. destruct (M i j); [|ring].
    now rewrite <- exp_plus, Rplus_minus. }
  split.
  - intro l. unfold matmul, softmax. rewrite HZ0, HA. unfold Rdiv. rewrite sum_r. apply sum_ext; intros j _.
    unfold E. destruct (M i j); [|ring]. rewrite Rinv_mult, <- exp_Ropp.
    replace (S i j) with (S i j - m + m) at 1 by ring. rewrite exp_plus.
    transitivity (exp (S i j - m) * V j l * / Z * (exp m * exp (- m))); [ring|].
    rewrite <- exp_plus, Rplus_opp_r, exp_0. ring.
  - intro H. apply (Z_live M S) in H. unfold logsumexp. rewrite HZ0 in *. pose proof (exp_pos m).
    assert (0 < Z) by nra. rewrite ln_mult, ln_exp by assumption. reflexivity.
Qed.

(** One part after the other, from a state that knows nothing. *)
Fixpoint merge_all (nothing : row_state) (N : nat) (s : nat -> row_state) : row_state :=
  match N with
  | O => nothing
  | S before => merge_states (merge_all nothing before s) (s before)
  end.

(** Let every key belong to some part, [owner j] of N, in any way, and let each part keep its state: all merged, they
    make the output and the log-sum-exp of the whole row. In a dead row the output is 0/0, read as 0. *)
Theorem the_online_softmax_is_the_softmax n_q n_k d_v (M : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) i N
    (owner : nat -> nat) (s : nat -> row_state) h :
  (forall j, (j < n_k)%nat -> (owner j < N)%nat) ->
  (forall b, (b < N)%nat -> knows n_k (fun j => M i j && (owner j =? b)) (S i) V (s b)) ->
  let whole := merge_all (State h 0 (fun _ => 0)) N s in
  (forall l, (softmax M S × V) i l = A_of whole l / Z_of whole) /\
  (live M n_k i -> logsumexp M S i = m_of whole + ln (Z_of whole)).
Proof.
  intros Ho Hs. set (s0 := State h 0 (fun _ => 0)).
  assert (H : knows n_k (fun j => M i j && (owner j <? N)) (S i) V (merge_all s0 N s)).
  { clear Ho. induction N as [|N IH].
    - split; simpl; intros; symmetry; apply sum_0; intros; rewrite andb_false_r; reflexivity.
    - specialize (IH (fun b Hb => Hs b (Nat.lt_lt_succ_r _ _ Hb))).
      assert (HD : disjoint n_k (fun j => M i j && (owner j <? N)) (fun j => M i j && (owner j =? N))).
      { intros j _. destruct (M i j), (Nat.ltb_spec (owner j) N), (Nat.eqb_spec (owner j) N); simpl; auto; lia. }
      pose proof (merge_knows n_k _ _ (S i) V _ (s N) HD IH (Hs N (Nat.lt_succ_diag_r N))) as [HZ HA].
      assert (HJ : forall j, M i j && (owner j <? Datatypes.S N) = M i j && (owner j <? N) || M i j && (owner j =? N)).
      { intro j. destruct (M i j), (Nat.ltb_spec (owner j) N), (Nat.eqb_spec (owner j) N),
          (Nat.ltb_spec (owner j) (Datatypes.S N)); simpl; auto; lia. }
      change (merge_all s0 (Datatypes.S N) s) with (merge_states (merge_all s0 N s) (s N)).
      split; [rewrite HZ|intro l; rewrite HA]; apply sum_ext; intros j _; now rewrite HJ. }
  destruct (merge_all s0 N s) as [m Z A] eqn:Es. apply eq_tile_end. destruct H as [HZ HA].
  split; [rewrite HZ|intro l; rewrite HA]; apply sum_ext; intros j Hj;
    rewrite (proj2 (Nat.ltb_lt _ _) (Ho j Hj)), andb_true_r; reflexivity.
Qed.

(** ** Finished outputs: the merge of (O, L) *)

(** Two numbers a row, side by side. *)
Definition two {T} (a b : nat -> T) : nat -> nat -> T := fun i k => if k =? 0 then a i else b i.

(** e^L, or 0 in a row without a key, is the sum of the exponentials. *)
Lemma exp_L {n_q n_k} M (S : tensor [n_q; n_k]) i : (if has_key M n_k i then exp (logsumexp M S i) else 0) = Z M S i.
Proof.
  destruct (has_key M n_k i) eqn:H.
  - apply has_key_live in H. unfold logsumexp. apply exp_ln. now apply Z_live.
  - symmetry. apply sum_0; intros j Hj. apply E_forbidden. now apply (proj1 (has_key_dead M n_k i) H).
Qed.

(** Z O is the sum of the values, weighted with the exponentials, in every row. *)
Lemma Z_times_O {n_q n_k d_v} M (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) i l :
  Z M S i * (softmax M S × V) i l = ∑ j < n_k, E M S i j * V j l.
Proof.
  unfold matmul. rewrite sum_l. apply sum_ext; intros j Hj. destruct (M i j) eqn:HM.
  - pose proof (Z_pos M S i j Hj HM). unfold softmax. field. lra.
  - rewrite softmax_forbidden, E_forbidden by exact HM. ring.
Qed.

(** Any number of parts, each with its output O_a and its L_a: the whole has L = log Σ e^(L_a), and O = Σ e^(L_a − L)
    O_a. A part without a key for a row takes no part in it. In a dead row L is a constant here (Coq's ln 0 = 0). *)
Theorem eq_tile_combine n_q n_k d_v N (M : mask) (owner : nat -> nat -> nat) (S : tensor [n_q; n_k])
    (V : tensor [n_k; d_v]) i :
  let part := (fun a i j => M i j && (owner i j =? a)) : nat -> mask in
  let O_ := fun a => softmax (part a) S × V in
  let L_ := fun a => logsumexp (part a) S i in
  let L := logsumexp M S i in
  (forall j, (j < n_k)%nat -> (owner i j < N)%nat) ->
  L = ln (∑ a < N, (if has_key (part a) n_k i then exp (L_ a) else 0)) /\
  (live M n_k i -> forall l,
    (softmax M S × V) i l = ∑ a < N, (if has_key (part a) n_k i then exp (L_ a - L) else 0) * O_ a i l).
Proof.
  intros part O_ L_ L Ho.
  assert (HE : forall f : nat -> R, ∑ a < N, ∑ j < n_k, E (part a) S i j * f j = ∑ j < n_k, E M S i j * f j).
  { intro f. rewrite sum_swap. apply sum_ext; intros j Hj.
    rewrite <- (sum_δ N (owner i j) (fun _ => E M S i j * f j) (Ho j Hj)).
    apply sum_ext; intros a _. unfold E, part, δ. destruct (M i j), (owner i j =? a); simpl; ring. }
  assert (HZ : ∑ a < N, Z (part a) S i = Z M S i).
  { transitivity (∑ a < N, ∑ j < n_k, E (part a) S i j * 1); [apply sum_ext; intros; apply sum_ext; intros; real|].
    rewrite (HE (fun _ => 1)). apply sum_ext; intros. real. }
  split.
  - unfold L, logsumexp. f_equal. rewrite <- HZ. apply sum_ext; intros a _. symmetry. exact (exp_L (part a) S i).
  - intros HL l. apply (Z_live M S) in HL. assert (HX : exp L = Z M S i) by (apply exp_ln; exact HL).
    assert (HW : forall a, (if has_key (part a) n_k i then exp (L_ a - L) else 0) = Z (part a) S i / Z M S i).
    { intro a. rewrite <- (exp_L (part a) S i). destruct (has_key (part a) n_k i); [|unfold Rdiv; ring].
      unfold Rminus. rewrite exp_plus, exp_Ropp, HX. reflexivity. }
    rewrite (sum_ext N _ (fun a => (∑ j < n_k, E (part a) S i j * V j l) / Z M S i)).
    + rewrite <- sum_div, HE, <- Z_times_O. symmetry. field. lra.
    + intros a _. rewrite HW, <- (Z_times_O (part a) S V). unfold Rdiv, O_. ring.
Qed.

(** A merge of two is an attention over two keys: their scores are L_1 and L_2, their values O_1 and O_2. *)
Theorem eq_merge n_q n_k d_v (M1 M2 : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) i :
  let M : mask := fun i j => M1 i j || M2 i j in
  let O_1 := softmax M1 S × V in let L_1 := logsumexp M1 S in
  let O_2 := softmax M2 S × V in let L_2 := logsumexp M2 S in
  let w : tensor [n_q; 2%nat] := softmax (n := 2) (two (has_key M1 n_k) (has_key M2 n_k)) (two L_1 L_2) in
  disjoint n_k (M1 i) (M2 i) ->
  (forall l, (softmax M S × V) i l = w i 0%nat * O_1 i l + w i 1%nat * O_2 i l) /\
  (live M1 n_k i -> live M2 n_k i -> logsumexp M S i = ln (exp (L_1 i) + exp (L_2 i))).
Proof.
  intros M O_1 L_1 O_2 L_2 w HJ.
  assert (HE : forall j, (j < n_k)%nat -> E M S i j = E M1 S i j + E M2 S i j).
  { intros j Hj. specialize (HJ j Hj). unfold E, M. destruct (M1 i j), (M2 i j); try discriminate; simpl; ring. }
  assert (HZ : Z M S i = Z M1 S i + Z M2 S i) by (unfold Z; rewrite <- sum_plus; now apply sum_ext).
  assert (E1 : E (n := 2) (m := n_q) (two (has_key M1 n_k) (has_key M2 n_k)) (two L_1 L_2) i 0%nat = Z M1 S i)
    by apply exp_L.
  assert (E2 : E (n := 2) (m := n_q) (two (has_key M1 n_k) (has_key M2 n_k)) (two L_1 L_2) i 1%nat = Z M2 S i)
    by apply exp_L.
  split.
  - intro l. unfold w, softmax at 2 3. unfold Z at 1 2. cbn [sum]. rewrite E1, E2, Rplus_0_l, <- HZ.
    transitivity ((Z M1 S i * O_1 i l + Z M2 S i * O_2 i l) / Z M S i); [|unfold Rdiv; ring].
    unfold O_1, O_2. rewrite !Z_times_O, <- sum_plus.
    rewrite (sum_ext n_k _ (fun j => E M S i j * V j l)) by (intros; rewrite HE by assumption; ring).
    unfold matmul, softmax. rewrite sum_div. apply sum_ext; intros. unfold Rdiv. ring.
  - intros H1 H2. unfold L_1, L_2, logsumexp. rewrite !exp_ln by now apply Z_live. now rewrite HZ.
Qed.

(** The merge, as a function of its four inputs; [alive i a] says whether part a has a key for row i. *)
Definition merged_O {n_q d_v} (alive : mask) (O_1 : tensor [n_q; d_v]) (L_1 : tensor [n_q]) (O_2 : tensor [n_q; d_v])
  (L_2 : tensor [n_q]) : tensor [n_q; d_v] :=
  fun i l => let w : tensor [n_q; 2%nat] := softmax alive (two L_1 L_2) in w i 0%nat * O_1 i l + w i 1%nat * O_2 i l.
Definition merged_L {n_q} (alive : mask) (L_1 L_2 : tensor [n_q]) : tensor [n_q] :=
  logsumexp (n := 2) alive (two L_1 L_2).

Lemma two_moves {n_q} (a b : R -> tensor [n_q]) t tA tB :
  moves a t tA -> moves b t tB -> moves (s := [n_q; 2%nat]) (fun u => two (a u) (b u)) t (two tA tB).
Proof. intros HA HB i Hi k _. unfold two. destruct (k =? 0); [now apply HA|now apply HB]. Qed.

(** How the merge moves: L by the mean of both, a weight by how much more its L moves than that. In a dead row L is a
    constant here (Coq's ln 0 = 0). *)
Theorem eq_merge_jvp n_q d_v (alive : mask) (O_1 O_2 : R -> tensor [n_q; d_v]) (L_1 L_2 : R -> tensor [n_q]) t
    (tO_1 tO_2 : tensor [n_q; d_v]) (tL_1 tL_2 : tensor [n_q]) :
  let w : tensor [n_q; 2%nat] := softmax alive (two (L_1 t) (L_2 t)) in
  let w_1 := fun i => w i 0%nat in
  let w_2 := fun i => w i 1%nat in
  let tL : tensor [n_q] := fun i => w_1 i * tL_1 i + w_2 i * tL_2 i in
  let tO : tensor [n_q; d_v] := fun i l =>
    w_1 i * (tO_1 i l + (tL_1 i - tL i) * O_1 t i l) + w_2 i * (tO_2 i l + (tL_2 i - tL i) * O_2 t i l) in
  moves O_1 t tO_1 -> moves O_2 t tO_2 -> moves L_1 t tL_1 -> moves L_2 t tL_2 ->
  moves (fun u => merged_L alive (L_1 u) (L_2 u)) t tL /\
  moves (fun u => merged_O alive (O_1 u) (L_1 u) (O_2 u) (L_2 u)) t tO.
Proof.
  intros w w_1 w_2 tL tO HO1 HO2 HL1 HL2. pose proof (two_moves L_1 L_2 t tL_1 tL_2 HL1 HL2) as H2. split.
  - intros i Hi. eapply derive_eq; [exact (logsumexp_moves alive (fun u => two (L_1 u) (L_2 u)) t _ H2 i Hi)|].
    cbn [sum]. fold w. unfold tL, w_1, w_2, two. simpl. ring.
  - intros i Hi l Hl.
    assert (Hw : forall a, (a < 2)%nat -> is_derive (fun u => softmax (m := n_q)
      (n := 2) alive (two (L_1 u) (L_2 u)) i a) t
      (w i a * (two tL_1 tL_2 i a - tL i))).
    { intros a Ha. eapply derive_eq; [exact (softmax_moves alive (fun u => two (L_1 u) (L_2 u)) t _ H2 i Hi a Ha)|].
      unfold centered. cbn [sum]. fold w. unfold tL, w_1, w_2, two. simpl. ring. }
    eapply derive_eq.
    + apply (derive_plus (fun u => softmax (m := n_q) (n := 2) alive (two (L_1 u) (L_2 u)) i 0%nat * O_1 u i l)
        (fun u => softmax (m := n_q) (n := 2) alive (two (L_1 u) (L_2 u)) i 1%nat * O_2 u i l)).
      * apply (derive_mult (fun u => softmax (m := n_q) (n := 2) alive (two (L_1 u) (L_2 u)) i 0%nat));
          [apply Hw; lia|now apply HO1].
      * apply (derive_mult (fun u => softmax (m := n_q) (n := 2) alive (two (L_1 u) (L_2 u)) i 1%nat));
          [apply Hw; lia|now apply HO2].
    + cbv beta. unfold tO. unfold two at 1 3. simpl. unfold w_1, w_2, w. ring.
Qed.

(** All four inputs at once: an output gets dO times its weight, an L its weight times (dO·O_a − D + dL). [alive i a]: part
    a has a key for row i; if not, its L is not read. In a dead row L is a constant here (Coq's ln 0 = 0). *)
Theorem eq_merge_vjp n_q d_v (alive : mask) (O_1 O_2 : R -> tensor [n_q; d_v])
    (L_1 L_2 : R -> tensor [n_q]) t tO_1 tO_2 tL_1 tL_2
    (ℓ : tensor [n_q; d_v] -> tensor [n_q] -> R) (dO : tensor [n_q; d_v]) (dL : tensor [n_q]) :
  let w : tensor [n_q; 2%nat] := softmax alive (two (L_1 t) (L_2 t)) in
  let O := merged_O alive (O_1 t) (L_1 t) (O_2 t) (L_2 t) in
  let D := rowsum (dO ∘ O) in
  moves O_1 t tO_1 -> moves O_2 t tO_2 -> moves L_1 t tL_1 -> moves L_2 t tL_2 ->
  gradient2 ℓ O (merged_L alive (L_1 t) (L_2 t)) dO dL ->
  is_derive (fun u => ℓ (merged_O alive (O_1 u) (L_1 u) (O_2 u) (L_2 u)) (merged_L alive (L_1 u) (L_2 u))) t
    (⟨(fun i l => w i 0%nat * dO i l) : tensor [n_q; d_v], tO_1⟩ +
     ⟨(fun i => w i 0%nat * (rowsum (dO ∘ O_1 t) i - D i + dL i)) : tensor [n_q], tL_1⟩ +
     (⟨(fun i l => w i 1%nat * dO i l) : tensor [n_q; d_v], tO_2⟩ +
      ⟨(fun i => w i 1%nat * (rowsum (dO ∘ O_2 t) i - D i + dL i)) : tensor [n_q], tL_2⟩)).
Proof.
  intros w O D HO1 HO2 HL1 HL2 Hℓ.
  destruct (eq_merge_jvp n_q d_v alive O_1 O_2 L_1 L_2 t tO_1 tO_2 tL_1 tL_2 HO1 HO2 HL1 HL2) as [HL HO].
  eapply derive_eq; [exact (Hℓ (fun u => merged_O alive (O_1 u) (L_1 u) (O_2 u) (L_2 u))
    (fun u => merged_L alive (L_1 u) (L_2 u))
    t _ _ eq_refl eq_refl HO HL)|]. fold w. cbn [dot].
  rewrite <- !sum_plus. apply sum_ext; intros i _. unfold D, rowsum, hadamard, O, merged_O. fold w.
  set (a := w i 0%nat). set (b := w i 1%nat). set (x := tL_1 i). set (y := tL_2 i).
  transitivity ((∑ l < d_v, (a * dO i l * tO_1 i l + (a * (x - (a * x + b * y))) * (dO i l * O_1 t i l) +
    (b * dO i l * tO_2 i l + (b * (y - (a * x + b * y))) * (dO i l * O_2 t i l)))) + dL i * (a * x + b * y)).
  { f_equal. apply sum_ext; intros l _. ring. }
  rewrite !sum_plus, <- !sum_l.
  rewrite (sum_ext d_v (fun l => dO i l * (a * O_1 t i l + b * O_2 t i l))
    (fun l => a * (dO i l * O_1 t i l) + b * (dO i l * O_2 t i l)))
    by (intros; ring).
  rewrite sum_plus, <- !sum_l. ring.
Qed.

(** One part at a time: the same two gradients, with the other part standing still. *)
Theorem eq_merge_vjp__one_part n_q d_v (alive : mask) (O_1 O_2 : tensor [n_q; d_v]) (L_1 L_2 : tensor [n_q])
    (ℓ : tensor [n_q; d_v] -> tensor [n_q] -> R) (dO : tensor [n_q; d_v]) (dL : tensor [n_q]) :
  let w : tensor [n_q; 2%nat] := softmax alive (two L_1 L_2) in
  let O := merged_O alive O_1 L_1 O_2 L_2 in
  let D := rowsum (dO ∘ O) in
  gradient2 ℓ O (merged_L alive L_1 L_2) dO dL ->
  gradient2 (fun O_1 L_1 => ℓ (merged_O alive O_1 L_1 O_2 L_2) (merged_L alive L_1 L_2)) O_1 L_1
    (fun i l => w i 0%nat * dO i l) (fun i => w i 0%nat * (rowsum (dO ∘ O_1) i - D i + dL i)) /\
  gradient2 (fun O_2 L_2 => ℓ (merged_O alive O_1 L_1 O_2 L_2) (merged_L alive L_1 L_2)) O_2 L_2
    (fun i l => w i 1%nat * dO i l) (fun i => w i 1%nat * (rowsum (dO ∘ O_2) i - D i + dL i)).
Proof.
  intros w O D H. split; intros x y t tX tY Hx Hy HtX HtY; subst.
  - eapply derive_eq.
    + exact (eq_merge_vjp n_q d_v alive x (fun _ => O_2) y (fun _ => L_2) t tX zero tY zero ℓ dO dL HtX
        (moves_const O_2 t) HtY (moves_const L_2 t) H).
    + rewrite !dot_zero. fold w O D. ring.
  - eapply derive_eq.
    + exact (eq_merge_vjp n_q d_v alive (fun _ => O_1) x (fun _ => L_1) y t zero tX zero tY ℓ dO dL
        (moves_const O_1 t) HtX (moves_const L_1 t) HtY H).
    + rewrite !dot_zero. fold w O D. ring.
Qed.

(** ** Weights from what was kept *)

(** Measured from any height m, the row's sum is e^m times larger. *)
Lemma Z_from_height {n_q n_k} M (S : tensor [n_q; n_k]) i m :
  Z M S i = exp m * ∑ k < n_k, (if M i k then exp (S i k - m) else 0).
Proof.
  rewrite sum_l. apply sum_ext; intros k _. unfold E. destruct (M i k); [|ring]. now rewrite <- exp_plus, Rplus_minus.
Qed.

(** Two numbers a row make the weights again, m and Z, and so does one, L = m + log Z. *)
Theorem eq_tile_two_parts n_q n_k (M : mask) (S : tensor [n_q; n_k]) (m : tensor [n_q]) i j :
  let Z := fun i => ∑ k < n_k, (if M i k then exp (S i k - m i) else 0) in
  let L := fun i => m i + ln (Z i) in
  (j < n_k)%nat -> M i j = true ->
  softmax M S i j = exp (S i j - m i) / Z i /\ softmax M S i j = exp (S i j - L i).
Proof.
  intros Z L Hj HM. pose proof (Z_pos M S i j Hj HM) as HZ. rewrite (Z_from_height M S i (m i)) in HZ. fold (Z i) in HZ.
  pose proof (exp_pos (m i)) as He. assert (0 < Z i) by nra.
  assert (H1 : softmax M S i j = exp (S i j - m i) / Z i).
  { unfold softmax. rewrite (Z_from_height M S i (m i)). fold (Z i). unfold E. rewrite HM.
    replace (exp (S i j)) with (exp (m i) * exp (S i j - m i)) by now rewrite <- exp_plus, Rplus_minus. field. lra. }
  split; [exact H1|]. rewrite H1. unfold L. replace (S i j - (m i + ln (Z i))) with (S i j - m i + - ln (Z i)) by ring.
  rewrite exp_plus, exp_Ropp, exp_ln by assumption. reflexivity.
Qed.

Lemma weights_from_L {n_q n_k} M (S : tensor [n_q; n_k]) i j : (j < n_k)%nat ->
  softmax M S i j = if M i j then exp (S i j - logsumexp M S i) else 0.
Proof.
  intro Hj. destruct (M i j) eqn:HM; [|now apply softmax_forbidden]. pose proof (Z_pos M S i j Hj HM) as HZ.
  unfold logsumexp, Rminus. rewrite exp_plus, exp_Ropp, exp_ln by exact HZ. unfold softmax, E. now rewrite HM.
Qed.

(** dS with D from the output. *)
Lemma centered_D {n_q n_k d_v} (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) i j :
  centered P (dO × V^T) i j = P i j * ((dO × V^T) i j - rowsum (dO ∘ (P × V)) i).
Proof. rewrite D_from_output. reflexivity. Qed.

(** D = rowsum(dO ∘ O) is the row's average of dP, with dropout too: all that is used is that each weight is multiplied
    by a number of its own. *)
Theorem eq_tile_D n_q n_k d_v p_drop (P kept : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) i :
  let P' : tensor [n_q; n_k] := fun i j => kept i j * P i j / (1 - p_drop) in
  let O := P' × V in
  let dP' := dO × V^T in
  let dP := fun i j => kept i j * dP' i j / (1 - p_drop) in
  p_drop <> 1 ->
  rowsum (dO ∘ O) i = (∑ j < n_k, P' i j * ∑ l < d_v, dO i l * V j l) /\
  rowsum (dO ∘ O) i = (∑ j < n_k, P' i j * dP' i j) /\
  rowsum (dO ∘ O) i = ∑ j < n_k, P i j * dP i j.
Proof.
  intros P' O dP' dP _. unfold O. rewrite (D_from_output P' V dO i). split; [reflexivity|]. split; [reflexivity|].
  apply sum_ext; intros j _. unfold P', dP, dP', Rdiv. ring.
Qed.

(** An entry of dS needs row i of Q and dO, row j of K and V, and m, Z and D of its row: nothing
    else beyond the tile. *)
Theorem eq_tile_entry n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) (m : tensor [n_q]) :
  let O := attention M scale Q K V B in
  let S := fun i j => scale * (∑ c < d_k, Q i c * K j c) + B i j in
  let Z := fun i => ∑ j < n_k, (if M i j then exp (S i j - m i) else 0) in
  let D := rowsum (dO ∘ O) in
  let P := fun i j => if M i j then exp (S i j - m i) / Z i else 0 in
  let dP := fun i j => ∑ l < d_v, dO i l * V j l in
  gradient ℓ O dO ->
  gradient (fun B => ℓ (attention M scale Q K V B)) B (fun i j => P i j * (dP i j - D i)).
Proof.
  intros O S Z D P dP H. refine (gradient_ext _ _ _ _ _ (gradient_B M scale Q K V B ℓ dO H)). intros i _ j Hj. simpl.
  rewrite centered_D. change (weights M scale Q K B i j * (dP i j - D i) = P i j * (dP i j - D i)). f_equal. unfold P.
  destruct (M i j) eqn:HM; [|now apply weights_forbidden].
  exact (proj1 (eq_tile_two_parts n_q n_k M (scores scale Q K B) m i j Hj HM)).
Qed.

(** ** The backward, tile by tile *)

(** A product, cut along the axis that is summed, is a sum of products: queries and keys in blocks of any number and any
    lengths, arrays whose blocks are these sums are the gradients. *)
Theorem eq_tile_sums (N_q N_k : nat) (r c : nat -> nat) d_k d_v (M : mask) scale (Q : tensor [start r N_q; d_k])
    (K : tensor [start c N_k; d_k]) (V : tensor [start c N_k; d_v]) (B : tensor [start r N_q; start c N_k])
    (ℓ : tensor [start r N_q; d_v] -> R) (dO : tensor [start r N_q; d_v]) (dQ : tensor [start r N_q; d_k])
    (dK : tensor [start c N_k; d_k]) (dV : tensor [start c N_k; d_v]) :
  let O := attention M scale Q K V B in
  let P := weights M scale Q K B in
  let dS : tensor [start r N_q; start c N_k] := fun i j => P i j * ((dO × V^T) i j - rowsum (dO ∘ O) i) in
  gradient ℓ O dO ->
  (forall J, (J < N_k)%nat -> equal (block_rows c J dV) (fun j l => ∑ I < N_q, ((tile r c I J P)^T × block_rows r I dO) j l)) ->
  (forall I, (I < N_q)%nat -> equal (block_rows r I dQ)
    (fun i a => ∑ J < N_k, (scale • (tile r c I J dS × block_rows c J K)) i a)) ->
  (forall J, (J < N_k)%nat -> equal (block_rows c J dK)
    (fun j a => ∑ I < N_q, (scale • ((tile r c I J dS)^T × block_rows r I Q)) j a)) ->
  gradient (fun V => ℓ (attention M scale Q K V B)) V dV /\
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q dQ /\
  gradient (fun K => ℓ (attention M scale Q K V B)) K dK.
Proof.
  intros O P dS H HV HQ HK.
  assert (HS : forall i j, dS i j = centered P (dO × V^T) i j) by (intros i j; symmetry; exact (centered_D P V dO i j)).
  destruct (eq_num_blocks N_q N_k r c d_k d_v M scale Q K V B ℓ dO dQ dK dV H) as [AQ [AK AV]]; auto.
  - intros J HJ. split; [|exact (HV J HJ)]. intros j Hj a Ha. rewrite (HK J HJ j Hj a Ha). unfold scaled. rewrite sum_l.
    apply sum_ext; intros I _. f_equal. apply sum_ext; intros i _. f_equal. exact (HS _ _).
  - intros I HI i Hi a Ha. rewrite (HQ I HI i Hi a Ha). unfold scaled. rewrite sum_l.
    apply sum_ext; intros J _. f_equal. apply sum_ext; intros j _. f_equal. exact (HS _ _).
Qed.

Lemma start_in c N J j : (J < N)%nat -> (j < c J)%nat -> (start c J + j < start c N)%nat.
Proof.
  induction N as [|N IH]; intros HJ Hj; [lia|]. simpl. destruct (Nat.eq_dec J N) as [->|]; [lia|].
  pose proof (IH ltac:(lia) Hj). lia.
Qed.

(** The tiled backward is the backward. Each tile makes its weights from its own queries and keys and the kept L, its dS
    from its own dO and values and from D = rowsum(dO ∘ O). What the tiles add up is dQ, dK and dV, for every partition
    of the queries and of the keys, every mask, and rows without a key. *)
Theorem the_tiled_backward_is_the_backward (N_q N_k : nat) (r c : nat -> nat) d_k d_v (M : mask) scale
    (Q : tensor [start r N_q; d_k]) (K : tensor [start c N_k; d_k]) (V : tensor [start c N_k; d_v])
    (B : tensor [start r N_q; start c N_k]) (ℓ : tensor [start r N_q; d_v] -> R) (dO : tensor [start r N_q; d_v])
    (dQ : tensor [start r N_q; d_k]) (dK : tensor [start c N_k; d_k]) (dV : tensor [start c N_k; d_v]) :
  let L := logsumexp M (scores scale Q K B) in
  let D := rowsum (dO ∘ attention M scale Q K V B) in
  let S_ := fun I J => scores scale (block_rows r I Q) (block_rows c J K) (tile r c I J B) in
  let P_ := (fun I J i j =>
      if M (start r I + i)%nat (start c J + j)%nat then exp (S_ I J i j - L (start r I + i)%nat) else 0)
    : forall I J, tensor [r I; c J] in
  let dP_ := fun I J => block_rows r I dO × (block_rows c J V)^T in
  let dS_ := (fun I J i j => P_ I J i j * (dP_ I J i j - D (start r I + i)%nat)) : forall I J, tensor [r I; c J] in
  gradient ℓ (attention M scale Q K V B) dO ->
  (forall J, (J < N_k)%nat -> equal (block_rows c J dV) (fun j l => ∑ I < N_q, ((P_ I J)^T × block_rows r I dO) j l)) ->
  (forall I, (I < N_q)%nat -> equal (block_rows r I dQ) (fun i a => ∑ J < N_k, (scale • (dS_ I J × block_rows c J K)) i a)) ->
  (forall J, (J < N_k)%nat -> equal (block_rows c J dK) (fun j a => ∑ I < N_q, (scale • ((dS_ I J)^T × block_rows r I Q)) j a)) ->
  gradient (fun V => ℓ (attention M scale Q K V B)) V dV /\
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q dQ /\
  gradient (fun K => ℓ (attention M scale Q K V B)) K dK.
Proof.
  intros L D S_ P_ dP_ dS_ H HV HQ HK. set (P := weights M scale Q K B).
  assert (HP : forall I J i j, (J < N_k)%nat -> (j < c J)%nat -> P_ I J i j
    = P (start r I + i)%nat (start c J + j)%nat).
  { intros I J i j HJ Hj. symmetry. exact (weights_from_L M (scores scale Q K B) _ _ (start_in c N_k J j HJ Hj)). }
  assert (HS : forall I J i j, (J < N_k)%nat -> (j < c J)%nat ->
    dS_ I J i j = P (start r I + i)%nat (start c J + j)%nat
      * ((dO × V^T) (start r I + i)%nat (start c J + j)%nat - D (start r I + i)%nat)).
  { intros I J i j HJ Hj. unfold dS_. rewrite HP by assumption. reflexivity. }
  apply (eq_tile_sums N_q N_k r c d_k d_v M scale Q K V B ℓ dO dQ dK dV H).
  - intros J HJ j Hj l Hl. rewrite (HV J HJ j Hj l Hl). apply sum_ext; intros I _. apply sum_ext; intros i _. f_equal.
    exact (HP I J i j HJ Hj).
  - intros I HI i Hi a Ha. rewrite (HQ I HI i Hi a Ha). apply sum_ext; intros J HJ. unfold scaled. f_equal.
    apply sum_ext; intros j Hj. f_equal. exact (HS I J i j HJ Hj).
  - intros J HJ j Hj a Ha. rewrite (HK J HJ j Hj a Ha). apply sum_ext; intros I _. unfold scaled. f_equal.
    apply sum_ext; intros i _. f_equal. exact (HS I J i j HJ Hj).
Qed.

(** Keys on several workers: each takes the L and the D of the whole row, and the parts of dQ add up. [owner j] is the
    worker that has key j, in any way. *)
Theorem eq_tile_split n_q n_k d_k d_v N (owner : nat -> nat) (M : mask) scale (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let O := attention M scale Q K V B in
  let S := scores scale Q K B in
  let L := logsumexp M S in
  let D := rowsum (dO ∘ O) in
  let P := fun i j => if M i j then exp (S i j - L i) else 0 in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - D i) in
  (forall j, (j < n_k)%nat -> (owner j < N)%nat) ->
  gradient ℓ O dO ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q
    (fun i c => ∑ w < N, scale * ∑ j < n_k, (if owner j =? w then dS i j * K j c else 0)).
Proof.
  intros O S L D P dP dS Ho H. refine (gradient_ext _ _ _ _ _ (gradient_Q M scale Q K V B ℓ dO H)).
  intros i _ c _. simpl.
  rewrite <- sum_l. unfold scaled. f_equal. rewrite sum_swap. apply sum_ext; intros j Hj.
  rewrite <- (sum_δ N (owner j) (fun _ => centered (weights M scale Q K B) (dO × V^T) i j * K j c) (Ho j Hj)).
  apply sum_ext; intros w _. unfold δ. destruct (owner j =? w); [|ring]. rewrite Rmult_1_l. f_equal.
  rewrite centered_D. change (weights M scale Q K B i j * (dP i j - D i) = dS i j). unfold dS. f_equal.
  exact (weights_from_L M S i j Hj).
Qed.

(** ** What makes it fast *)

(** With scale · log₂ e in the queries: the weights in base two, from any height in bits, and dK owes the
    factor ln 2. *)
Theorem eq_tile_bits n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v])
    (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) (m : tensor [n_q]) :
  let O := fun Q K => attention M scale Q K V (fun _ _ => 0) in
  let Q' := (scale * log2 (exp 1)) • Q in
  let Z := fun i => ∑ j < n_k, (if M i j then Rpower 2 ((Q' × K^T) i j - m i) else 0) in
  let P : tensor [n_q; n_k] := fun i j => if M i j then Rpower 2 ((Q' × K^T) i j - m i) / Z i else 0 in
  let dS : tensor [n_q; n_k] := fun i j => P i j * ((dO × V^T) i j - rowsum (dO ∘ O Q K) i) in
  (forall i j, (j < n_k)%nat -> P i j = weights M scale Q K (fun _ _ => 0) i j) /\
  (gradient ℓ (O Q K) dO ->
    gradient (fun Q => ℓ (O Q K)) Q (scale • (dS × K)) /\ gradient (fun K => ℓ (O Q K)) K (ln 2 • (dS^T × Q'))).
Proof.
  intros O Q' Z P dS. set (S := scores (n_q := n_q) (n_k := n_k) scale Q K (fun _ _ => 0)).
  assert (HX : forall i j, Rpower 2 ((Q' × K^T) i j - m i) = exp (S i j - ln 2 * m i)).
  { intros i j. rewrite <- (two_to (S i j - ln 2 * m i)). f_equal. rewrite Rmult_minus_distr_l. f_equal.
    - unfold S, scores, add, Q', scaled, matmul, transpose. rewrite Rplus_0_r, !sum_l. apply sum_ext; intros. ring.
    - rewrite log2_e. pose proof ln2_pos. symmetry. field. lra. }
  assert (HP : forall i j, (j < n_k)%nat -> P i j = weights M scale Q K (fun _ _ => 0) i j).
  { intros i j Hj. unfold P. destruct (M i j) eqn:HM; [|symmetry; now apply weights_forbidden]. symmetry.
    rewrite HX. unfold Z. rewrite (sum_ext n_k _ (fun k => if M i k then exp (S i k - ln 2 * m i) else 0))
      by (intros k _; destruct (M i k); [apply HX|reflexivity]).
    exact (proj1 (eq_tile_two_parts n_q n_k M S (fun i => ln 2 * m i) i j Hj HM)). }
  split; [exact HP|]. intro H.
  assert (HS : forall i j, (j < n_k)%nat -> centered (weights M scale Q K (fun _ _ => 0)) (dO × V^T) i j = dS i j).
  { intros i j Hj. rewrite centered_D. unfold dS. rewrite HP by exact Hj. reflexivity. }
  split.
  - refine (gradient_ext _ _ _ _ _ (gradient_Q M scale Q K V (fun _ _ => 0) ℓ dO H)). intros i _ c _. simpl.
    unfold scaled. f_equal.
    apply sum_ext; intros j Hj. f_equal. exact (HS i j Hj).
  - refine (gradient_ext _ _ _ _ _ (gradient_K M scale Q K V (fun _ _ => 0) ℓ dO H)). intros j Hj c _.
    change (scale * (∑ i < n_q, centered (weights M scale Q K (fun _ _ => 0)) (dO × V^T) i j * Q i c)
      = ln 2 * ∑ i < n_q, dS i j * (scale * log2 (exp 1) * Q i c)).
    rewrite !sum_l. apply sum_ext; intros i _. rewrite (HS i j Hj), log2_e. field. pose proof ln2_pos. lra.
Qed.

(** The largest of n numbers, or 0 where none is above it. *)
Fixpoint largest_or_0 (n : nat) (f : nat -> R) : R :=
  match n with
  | O => 0
  | S before => Rmax (largest_or_0 before f) (f before)
  end.

Lemma largest_or_0_le n f i : (i < n)%nat -> f i <= largest_or_0 n f.
Proof.
  induction n as [|n IH]; intro H; [lia|]. simpl. destruct (Nat.eq_dec i n) as [->|]; [apply Rmax_r|].
  apply Rle_trans with (largest_or_0 n f); [apply IH; lia|apply Rmax_l].
Qed.

Definition length_of (n : nat) (x : tensor [n]) : R := sqrt (∑ c < n, x c ^ 2).

Lemma cauchy_schwarz n (a b : nat -> R) : Rabs (∑ c < n, a c * b c) <= length_of n a * length_of n b.
Proof.
  set (A := ∑ c < n, a c ^ 2). set (B := ∑ c < n, b c ^ 2). set (C := ∑ c < n, a c * b c).
  assert (HA : 0 <= A) by (apply sum_nonneg; intros; apply pow2_ge_0).
  assert (HB : 0 <= B) by (apply sum_nonneg; intros; apply pow2_ge_0).
  assert (H : 0 <= 2 * (A * B - C * C)).
  { replace (2 * (A * B - C * C)) with (∑ k < n, ∑ l < n, (a k * b l - a l * b k) ^ 2).
    - apply sum_nonneg; intros. apply sum_nonneg; intros. apply pow2_ge_0.
    - transitivity (∑ k < n, (a k ^ 2 * B - 2 * (a k * b k) * C + b k ^ 2 * A)).
      + apply sum_ext; intros k _. unfold A, B, C. rewrite !sum_l, <- sum_minus, <- sum_plus. apply sum_ext; intros.
        ring.
      + rewrite sum_plus, sum_minus, <- !sum_r, <- sum_l. fold A B C. ring. }
  unfold length_of. fold A B. rewrite <- sqrt_mult, <- sqrt_Rsqr_abs by assumption. apply sqrt_le_1_alt. unfold Rsqr.
  lra.
Qed.

(** A score is at most as large as the lengths of the two vectors that it is made of, and so at most the product of the
    greatest lengths. *)
Theorem eq_tile_bound n_q n_k d_k (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) i j :
    (i < n_q)%nat -> (j < n_k)%nat ->
  Rabs (∑ c < d_k, Q i c * K j c) <= length_of d_k (Q i) * length_of d_k (K j) /\
  length_of d_k (Q i) * length_of d_k (K j)
    <= largest_or_0 n_q (fun i => length_of d_k (Q i)) * largest_or_0 n_k (fun j => length_of d_k (K j)).
Proof.
  intros Hi Hj. split; [apply cauchy_schwarz|]. apply Rmult_le_compat; try apply sqrt_pos.
  - exact (largest_or_0_le n_q (fun i => length_of d_k (Q i)) i Hi).
  - exact (largest_or_0_le n_k (fun j => length_of d_k (K j)) j Hj).
Qed.

(** [A, x]: one more column. *)
Definition beside {n d} (A : tensor [n; d]) (x : tensor [n]) : tensor [n; S d] :=
  fun i l => if l <? d then A i l else x i.

(** D is one more column of dO, that meets a column of ones. *)
Theorem eq_tile_column n_q n_k d_v (dO : tensor [n_q; d_v]) (V : tensor [n_k; d_v]) (D : tensor [n_q]) i j :
    (beside dO (fun i => - D i) × (beside V (fun _ => 1))^T) i j = (dO × V^T) i j - D i.
Proof.
  unfold matmul, transpose, beside. cbn [sum]. rewrite Nat.ltb_irrefl.
  rewrite (sum_ext d_v _ (fun l => dO i l * V j l)) by (intros l Hl; now rewrite (proj2 (Nat.ltb_lt l d_v) Hl)). ring.
Qed.

(** The engine's backward: dO is divided by Z, not the weights, and D is a column. E are the exponentials in base two,
    from any height in bits. In a dead row dO / Z is x/0, read as 0. *)
Theorem eq_tile_engine n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v])
    (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) (m : tensor [n_q]) :
  let O := fun V (B : tensor [n_q; n_k]) => attention M scale Q K V B in
  let no_bias : tensor [n_q; n_k] := fun _ _ => 0 in
  let Q' := (scale * log2 (exp 1)) • Q in
  let E : tensor [n_q; n_k] := fun i j => if M i j then Rpower 2 ((Q' × K^T) i j - m i) else 0 in
  let Z := rowsum E in
  let dO' : tensor [n_q; d_v] := fun i l => dO i l / Z i in
  let D' := rowsum (dO' ∘ O V no_bias) in
  let dS := E ∘ (beside dO' (fun i => - D' i) × (beside V (fun _ => 1))^T) in
  gradient ℓ (O V no_bias) dO ->
  gradient (fun V => ℓ (O V no_bias)) V (E^T × dO') /\ gradient (fun B => ℓ (O V B)) no_bias dS.
Proof.
  intros O no_bias Q' E Z dO' D' dS H.
  assert (HP : forall i j, (j < n_k)%nat -> weights M scale Q K no_bias i j = E i j * / Z i).
  { intros i j Hj. symmetry. refine (eq_trans _ (proj1 (eq_tile_bits n_q n_k d_k d_v M scale Q K V ℓ dO m) i j Hj)).
    unfold E, Z, rowsum, E. fold Q'. destruct (M i j); unfold Rdiv; ring. }
  split.
  - refine (gradient_ext _ _ _ _ _ (gradient_V M scale Q K V no_bias ℓ dO H)). intros j Hj l _.
    apply sum_ext; intros i _. unfold transpose. rewrite HP by exact Hj. unfold dO', Rdiv. ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_B M scale Q K V no_bias ℓ dO H)). intros i _ j Hj. simpl.
    rewrite centered_D, HP by exact Hj. unfold dS, hadamard at 2. rewrite eq_tile_column.
    replace (D' i) with (/ Z i * rowsum (dO ∘ O V no_bias) i)
      by (unfold D', rowsum, hadamard, dO', Rdiv; rewrite sum_l; apply sum_ext; intros; ring).
    replace ((dO' × V^T) i j) with (/ Z i * (dO × V^T) i j)
      by (unfold dO', matmul, Rdiv; rewrite sum_l; apply sum_ext; intros; ring).
    unfold O, attention. ring.
Qed.
