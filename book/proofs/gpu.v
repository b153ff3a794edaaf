(** * On a GPU (chapter 12, and the intensities of chapter 11)

    Operations a byte, which blocks a causal mask leaves, and what a backward that keeps something does not see.
    How many
    operations and bytes a kernel takes is counted in the book, and is no theorem. *)

From Coq Require Import ZArith.
From attnbook Require Export tiles.

(** ** Intensity *)

(** A program needs at least operations/π and at least bytes/β. So its rate lies under a roof. *)
Theorem eq_gpu_roofline operations bytes π β time :
  0 < operations -> 0 < bytes -> 0 < π -> 0 < β ->
  operations / π <= time -> bytes / β <= time ->
  operations / time <= operations / Rmax (operations / π) (bytes / β) /\
  operations / Rmax (operations / π) (bytes / β) = Rmin π (β * (operations / bytes)).
Proof.
  intros Ho Hb Hπ Hβ H1 H2. set (a := operations / π) in *. set (b := bytes / β) in *.
  assert (Ha : 0 < a) by now apply Rdiv_lt_0_compat. assert (Hb' : 0 < b) by now apply Rdiv_lt_0_compat.
  split.
  - apply Rmult_le_compat_l; [lra|]. apply Rinv_le_contravar; [|now apply Rmax_lub].
    apply Rlt_le_trans with a; [exact Ha|apply Rmax_l].
  - assert (EA : operations / a = π) by (unfold a; field; lra).
    assert (EB : operations / b = β * (operations / bytes)) by (unfold b; field; lra).
    rewrite <- EA at 1. rewrite <- EB. unfold Rmax, Rmin.
    assert (inv : forall x y, 0 < x -> x <= y -> operations / y <= operations / x)
      by (intros; apply Rmult_le_compat_l; [lra|now apply Rinv_le_contravar]).
    destruct (Rle_dec a b) as [h|h], (Rle_dec (operations / a) (operations / b)) as [k|k]; auto.
    + pose proof (inv a b Ha h). lra.
    + pose proof (inv b a Hb' ltac:(lra)). lra.
Qed.

(** A product of an n₁ × n₂ with an n₂ × n₃ matrix: 2 n₁ n₂ n₃ operations, and the bytes of its three matrices. *)
Theorem eq_gpu_product n1 n2 n3 size :
  0 < n1 -> 0 < n2 -> 0 < n3 -> 0 < size ->
  2 * n1 * n2 * n3 / (size * (n1 * n2 + n2 * n3 + n1 * n3)) = 2 / (size * (1 / n1 + 1 / n2 + 1 / n3)) /\
  2 / (size * (1 / n1 + 1 / n2 + 1 / n3)) < 2 * Rmin n1 (Rmin n2 n3) / size.
Proof.
  intros H1 H2 H3 Hs. pose proof (Rmult_lt_0_compat _ _ H1 H2). pose proof (Rmult_lt_0_compat _ _ H2 H3).
  pose proof (Rmult_lt_0_compat _ _ H1 H3). split; [field; lra|].
  set (s := 1 / n1 + 1 / n2 + 1 / n3).
  assert (i1 : 0 < 1 / n1) by (apply Rdiv_lt_0_compat; lra). assert (i2 : 0 < 1 / n2) by (apply Rdiv_lt_0_compat; lra).
  assert (i3 : 0 < 1 / n3) by (apply Rdiv_lt_0_compat; lra).
  assert (Hm : exists n, 0 < n /\ Rmin n1 (Rmin n2 n3) = n /\ 1 / n < s).
  { unfold Rmin. destruct (Rle_dec n2 n3), (Rle_dec n1 _); eexists; (split; [|split; [reflexivity|]]); unfold s; lra. }
  destruct Hm as [n [Hn [-> Hns]]]. assert (0 < s) by (unfold s; lra).
  apply (Rmult_lt_reg_r (size * s)); [now apply Rmult_lt_0_compat|].
  replace (2 / (size * s) * (size * s)) with 2 by (field; lra).
  replace (2 * n / size * (size * s)) with (2 * (n * s)) by (field; lra).
  apply (Rmult_lt_compat_l n) in Hns; [|exact Hn]. replace (n * (1 / n)) with 1 in Hns by (field; lra). lra.
Qed.

(** To make a weight again takes less time than to read it where the intensity of the product lies below the ridge. *)
Theorem eq_gpu_again d π β size :
  0 < π -> 0 < β -> 0 < size -> (2 * d / π < size / β <-> 2 * d / size < π / β).
Proof.
  intros Hπ Hβ Hs. split; intro H.
  - apply (Rmult_lt_compat_r (π / size)) in H; [|now apply Rdiv_lt_0_compat].
    replace (2 * d / π * (π / size)) with (2 * d / size) in H by (field; lra).
    replace (size / β * (π / size)) with (π / β) in H by (field; lra). exact H.
  - apply (Rmult_lt_compat_r (size / π)) in H; [|now apply Rdiv_lt_0_compat].
    replace (2 * d / size * (size / π)) with (2 * d / π) in H by (field; lra).
    replace (π / β * (size / π)) with (size / β) in H by (field; lra). exact H.
Qed.

(** For a long sequence only the terms with n² count. *)
Lemma long_sequence a b k : 0 < b -> is_lim (fun n => a * n ^ 2 / (b * n ^ 2 + k * n)) p_infty (a / b).
Proof.
  intro Hb. apply (is_lim_ext_loc (fun n => a * / (b + k * / n))).
  - exists (Rmax 1 (Rabs k / b)). intros n Hn. pose proof (Rmax_l 1 (Rabs k / b)). pose proof (Rmax_r 1 (Rabs k / b)).
    assert (Hk : Rabs k < b * n).
    { apply (Rmult_lt_reg_r (/ b)); [now apply Rinv_0_lt_compat|]. replace (b * n * / b) with n by (field; lra).
      unfold Rdiv in *. lra. }
    apply Rabs_def2 in Hk. assert (b * n + k > 0) by lra.
    field. repeat split; try lra. replace (b * n ^ 2 + k * n) with (n * (b * n + k)) by ring.
    apply Rgt_not_eq, Rmult_lt_0_compat; lra.
  - replace (Finite (a / b)) with (Rbar_mult a (Rbar_inv (b + k * 0))) by (simpl; now rewrite Rmult_0_r, Rplus_0_r).
    apply is_lim_scal_l. apply is_lim_inv; [|intro h; injection h; lra].
    apply (is_lim_plus' (fun _ => b) (fun n => k * / n)); [apply is_lim_const|].
    apply (is_lim_scal_l (fun n => / n) k p_infty 0). replace (Finite 0) with (Rbar_inv p_infty) by reflexivity.
    apply is_lim_inv; [apply is_lim_id|discriminate].
Qed.

(** Given these counts of operations and bytes: line by line, the intensity is set by the width of a head. *)
Theorem eq_gpu_naive_limit d size :
  0 < size ->
  is_lim (fun n => 4 * n ^ 2 * d / (size * (4 * n ^ 2 + 4 * n * d))) p_infty (d / size) /\
  is_lim (fun n => 8 * n ^ 2 * d / (size * (7 * n ^ 2 + 8 * n * d))) p_infty (8 * d / (7 * size)).
Proof.
  intro Hs. split.
  - replace (d / size) with (4 * d / (4 * size)) by (field; lra).
    apply (is_lim_ext (fun n => 4 * d * n ^ 2 / (4 * size * n ^ 2 + 4 * d * size * n)));
      [intro; unfold Rdiv; f_equal; [ring|f_equal; ring]|].
    apply long_sequence. lra.
  - apply (is_lim_ext (fun n => 8 * d * n ^ 2 / (7 * size * n ^ 2 + 8 * d * size * n)));
      [intro; unfold Rdiv; f_equal; [ring|f_equal; ring]|].
    apply long_sequence. lra.
Qed.

(** Given these counts: fused, it is set by the height r of a block; in the backward also the width of a head counts,
    and drops out when it is wide. *)
Theorem eq_gpu_fused_limit d r size :
  0 < d -> 0 < r -> 0 < size ->
  is_lim (fun n => 4 * n ^ 2 * d / (size * (2 * n ^ 2 * d / r + 2 * n * d + n))) p_infty (2 * r / size) /\
  is_lim (fun n => 14 * n ^ 2 * d / (size * ((4 * d + 2) * n ^ 2 / r + 9 * n * d + 3 * n))) p_infty
    (14 * d * r / ((4 * d + 2) * size)) /\
  is_lim (fun d => 14 * d * r / ((4 * d + 2) * size)) p_infty (7 * r / (2 * size)).
Proof.
  intros Hd Hr Hs. split; [|split].
  - replace (2 * r / size) with (4 * d / (2 * d * size / r)) by (field; lra).
    apply (is_lim_ext (fun n => 4 * d * n ^ 2 / (2 * d * size / r * n ^ 2 + (2 * d + 1) * size * n)));
      [intro; unfold Rdiv; f_equal; [ring|f_equal; ring]|]. apply long_sequence. apply Rdiv_lt_0_compat; nra.
  - replace (14 * d * r / ((4 * d + 2) * size)) with (14 * d / ((4 * d + 2) * size / r)) by (field; lra).
    apply (is_lim_ext (fun n => 14 * d * n ^ 2 / ((4 * d + 2) * size / r * n ^ 2 + (9 * d + 3) * size * n)));
      [intro; unfold Rdiv; f_equal; [ring|f_equal; ring]|]. apply long_sequence. apply Rdiv_lt_0_compat; nra.
  - replace (7 * r / (2 * size)) with (14 * r / (4 * size)) by (field; lra).
    apply (is_lim_ext_loc (fun d => 14 * r * d ^ 2 / (4 * size * d ^ 2 + 2 * size * d))); [|apply long_sequence; lra].
    exists 1. intros x Hx. field. repeat split; nra.
Qed.

(** Given these counts of operations and bytes, the intensity of the dense and of the tiled way of chapter 11, on a CPU.
    Dense, it is set by the width of a head; tiled, for a long sequence, by the height r of a tile. *)
Theorem eq_speed_intensity n d r size :
  0 < n -> 0 < d -> 0 < r -> 0 < size ->
  12 * n ^ 2 * d / (11 * n ^ 2 * size) = 12 * d / (11 * size) /\
  is_lim (fun n => 14 * n ^ 2 * d / ((8 * n / r + 6) * n * d * size)) p_infty (7 * r / (4 * size)).
Proof.
  intros Hn Hd Hr Hs. split; [field; nra|].
  replace (7 * r / (4 * size)) with (14 * d / (8 * d * size / r)) by (field; lra).
  apply (is_lim_ext (fun n => 14 * d * n ^ 2 / (8 * d * size / r * n ^ 2 + 6 * d * size * n)));
    [intro; unfold Rdiv; f_equal; [ring|f_equal; ring]|]. apply long_sequence. apply Rdiv_lt_0_compat; nra.
Qed.

(** One new query a head, g heads to a group, given these counts of operations and bytes: neither the width nor the
    length helps, only the sharing. *)
Theorem eq_gpu_decode g d size :
  0 < d -> 0 < size -> is_lim (fun n => 4 * g * n * d / (size * (2 * n * d + 2 * g * d))) p_infty (2 * g / size).
Proof.
  intros Hd Hs. replace (2 * g / size) with (4 * g * d / (2 * d * size)) by (field; lra).
  apply (is_lim_ext_loc (fun n => 4 * g * d * n ^ 2 / (2 * d * size * n ^ 2 + 2 * g * d * size * n)));
    [|apply long_sequence; nra].
  exists (Rmax 1 (Rabs g)). intros n Hn. pose proof (Rmax_l 1 (Rabs g)). pose proof (Rmax_r 1 (Rabs g)).
  pose proof (Rle_abs (- g)). rewrite Rabs_Ropp in *. assert (0 < n + g) by lra.
  replace (2 * d * size * n ^ 2 + 2 * g * d * size * n) with (2 * d * size * n * (n + g)) by ring.
  replace (size * (2 * n * d + 2 * g * d)) with (2 * d * size * (n + g)) by ring. field. repeat split; lra.
Qed.

(** Given these counts: a backward with 14 n² d operations, of which the custom counts 10, is reported with 5/7 of the
    peak at best. *)
Theorem eq_gpu_counted n d π :
  n <> 0 -> d <> 0 -> π <> 0 -> 10 * n ^ 2 * d / (14 * n ^ 2 * d / π) = 5 / 7 * π.
Proof. intros. field. auto. Qed.

(** ** Blocks *)

(** ⌈a / b⌉ *)
Definition ceil (a b : nat) : nat := ((a + b - 1) / b)%nat.

Lemma ceil_spec a b x : (0 < b)%nat -> (x < ceil a b <-> x * b < a)%nat.
Proof.
  intro Hb. unfold ceil. pose proof (Nat.div_mod (a + b - 1) b ltac:(lia)) as H.
  pose proof (Nat.mod_upper_bound (a + b - 1) b ltac:(lia)). split; intro; nia.
Qed.

(** Query i and key j lie in the tile of block I of r queries and block J of c keys. *)
Definition in_tile (r c I J i j : nat) : Prop := (I * r <= i < (I + 1) * r /\ J * c <= j < (J + 1) * c)%nat.

(** Under a causal mask, a whole tile has an allowed pair if and only if it lies within the bounds of the two loops. A
    tile cut off at the end of the sequence may have none. *)
Theorem eq_gpu_blocks (r c I J n_q n_k : nat) :
    (0 < r)%nat -> (0 < c)%nat ->
  ((J < ceil ((I + 1) * r) c)%nat <-> exists i j, in_tile r c I J i j /\ causal i j = true) /\
  ((J < ceil n_k c)%nat <-> (J * c < n_k)%nat) /\
  ((J * c / r <= I)%nat <-> exists i j, in_tile r c I J i j /\ causal i j = true) /\
  ((I < ceil n_q r)%nat <-> (I * r < n_q)%nat).
Proof.
  intros Hr Hc.
  assert (H : (J * c < (I + 1) * r)%nat <-> exists i j, in_tile r c I J i j /\ causal i j = true).
  { unfold in_tile, causal. split.
    - intro H. exists ((I + 1) * r - 1)%nat, (J * c)%nat. rewrite Nat.leb_le. nia.
    - intros [i [j [Ht Hj]]]. apply Nat.leb_le in Hj. nia. }
  split; [rewrite ceil_spec by exact Hc; exact H|]. split; [now apply ceil_spec|]. split; [|now apply ceil_spec].
  rewrite <- H. pose proof (Nat.div_mod (J * c) r ltac:(lia)). pose proof (Nat.mod_upper_bound (J * c) r ltac:(lia)).
  split; intro; nia.
Qed.

(** A tile needs no mask if and only if it lies wholly at or below the diagonal. *)
Theorem eq_gpu_unmasked (r c I J : nat) :
    (0 < r)%nat -> (0 < c)%nat ->
  ((J + 1) * c <= I * r + 1)%nat <-> (forall i j, in_tile r c I J i j -> causal i j = true).
Proof.
  intros Hr Hc. unfold in_tile, causal. split.
  - intros H i j Ht. apply Nat.leb_le. nia.
  - intro H. specialize (H (I * r)%nat ((J + 1) * c - 1)%nat ltac:(nia)). apply Nat.leb_le in H. nia.
Qed.

(** With the mask at the bottom-right corner, the bounds of whole tiles move by shift = n_k − n_q. A tile cut off at
    the end of the sequence may have no allowed pair within them. *)
Theorem eq_gpu_corner (r c I J n_q n_k : nat) :
  let shift := (Z.of_nat n_k - Z.of_nat n_q)%Z in
  let z := Z.of_nat in
  (0 < r)%nat -> (0 < c)%nat ->
  ((z J < (Z.max 0 ((z I + 1) * z r + shift) + z c - 1) / z c)%Z <->
    exists i j, in_tile r c I J i j /\ causal_bottom_right n_q n_k i j = true) /\
  ((Z.max 0 ((z J * z c - shift) / z r) <= z I)%Z <->
    exists i j, in_tile r c I J i j /\ causal_bottom_right n_q n_k i j = true).
Proof.
  intros shift z Hr Hc.
  assert (H : (z J * z c < (z I + 1) * z r + shift)%Z <-> exists i j, in_tile r c I J i j /\
    causal_bottom_right n_q n_k i j = true).
  { unfold in_tile, causal_bottom_right, shift, z. split.
    - intro H. exists ((I + 1) * r - 1)%nat, (J * c)%nat. rewrite Nat.leb_le. nia.
    - intros [i [j [Ht Hj]]]. apply Nat.leb_le in Hj. nia. }
  rewrite <- H. unfold z in *. split.
  - set (a := Z.max 0 ((Z.of_nat I + 1) * Z.of_nat r + shift)%Z).
    pose proof (Z.div_mod (a + Z.of_nat c - 1) (Z.of_nat c) ltac:(lia)).
    pose proof (Z.mod_pos_bound (a + Z.of_nat c - 1) (Z.of_nat c) ltac:(lia)). unfold a in *. split; intro; nia.
  - set (a := (Z.of_nat J * Z.of_nat c - shift)%Z). pose proof (Z.div_mod a (Z.of_nat r) ltac:(lia)).
    pose proof (Z.mod_pos_bound a (Z.of_nat r) ltac:(lia)). unfold a in *. split; intro; nia.
Qed.

Lemma count_from a n : ∑ i < n, (if a <=? i then 1 else 0) = INR (n - a).
Proof.
  induction n as [|n IH]; [reflexivity|]. cbn [sum]. rewrite IH. destruct (Nat.leb_spec a n).
  - replace (S n - a)%nat with (S (n - a)) by lia. now rewrite S_INR.
  - replace (S n - a)%nat with (n - a)%nat by lia. ring.
Qed.

Lemma count_causal N c :
  let n := (N * c)%nat in
  ∑ i < n, ∑ j < n, (if j / c * c <=? i then 1 else 0) = / 2 * INR n * (INR n + INR c).
Proof.
  intro n. rewrite sum_swap. unfold n at 1. rewrite sum_mul.
  transitivity (∑ J < N, INR c * (INR n - INR J * INR c)).
  - apply sum_ext; intros J HJ. rewrite <- sum_const. apply sum_ext; intros k Hk.
    replace ((J * c + k) / c)%nat with J by (apply (Nat.div_unique _ c J k Hk); lia).
    rewrite count_from, minus_INR, mult_INR by (unfold n; nia). reflexivity.
  - assert (H : forall m x, ∑ J < m, INR c * (x - INR J * INR c)
      = INR c * (INR m * x - INR c * INR m * (INR m - 1) / 2)).
    { intros m x. induction m as [|m IH]; [simpl; field|]. cbn [sum]. rewrite IH, S_INR. field. }
    rewrite H. unfold n. rewrite mult_INR. field.
Qed.

(** Tiles of r rows and c columns under a causal mask, with their dead rows and columns cut off. If c divides r, pair
    (i, j) is then worked on just where the tile of key j begins at or before query i. If r divides n too, that is
    ½ n (n + c) pairs. *)
Theorem eq_tile_causal N m c :
  let r := (m * c)%nat in
  let n := (N * r)%nat in
  (0 < c)%nat ->
  (forall I J i j, in_tile r c I J i j ->
    (exists j', in_tile r c I J i j' /\ (j' <= i)%nat) /\ (exists i', in_tile r c I J i' j /\ (j <= i')%nat) <->
    (j / c * c <= i)%nat) /\
  ∑ i < n, ∑ j < n, (if j / c * c <=? i then 1 else 0) = / 2 * INR n * (INR n + INR c).
Proof.
  intros r n Hc. split.
  - intros I J i j [Hi Hj]. unfold in_tile.
    replace (j / c)%nat with J by (apply (Nat.div_unique _ c J (j - J * c)); nia). split.
    + intros [[j' H] _]. lia.
    + intro H. split; [exists (J * c)%nat; lia|].
      exists ((I + 1) * r - 1)%nat. unfold r in *.
      assert (J + 1 <= (I + 1) * m)%nat by nia. nia.
  - unfold n, r. replace (N * (m * c))%nat with (N * m * c)%nat by lia. exact (count_causal (N * m) c).
Qed.

Lemma count_back a I N : (I < N)%nat -> ∑ J < N, (if (J <=? I) && (I <=? J + a) then 1 else 0) = INR (Nat.min I a + 1).
Proof.
  intro HI. replace N with (S I + (N - S I))%nat by lia. rewrite sum_add, (sum_0 (N - S I)), Rplus_0_r.
  - rewrite (sum_ext (S I) _ (fun J => if I - a <=? J then 1 else 0)).
    + rewrite count_from. f_equal. lia.
    + intros J HJ. destruct (Nat.leb_spec J I), (Nat.leb_spec I (J + a)), (Nat.leb_spec (I - a) J); simpl; auto; lia.
  - intros k _. destruct (Nat.leb_spec (S I + k) I); [lia|reflexivity].
Qed.

(** Under a causal window of w earlier keys, square tiles of length c: which of them have an allowed pair, and how many
    that is among N × N. *)
Theorem eq_tile_window (c w N : nat) :
  (0 < c)%nat ->
  (forall I J, (exists i j, in_tile c c I J i j /\ (j <= i <= j + w)%nat) <-> (J <= I <= J + ceil w c)%nat) /\
  ∑ I < N, ∑ J < N, (if (J <=? I) && (I <=? J + ceil w c) then 1 else 0) = ∑ I < N, INR (Nat.min I (ceil w c) + 1) /\
  ∑ I < N, INR (Nat.min I (ceil w c) + 1) <= INR N * (INR (ceil w c) + 1).
Proof.
  intro Hc. split; [|split].
  - intros I J. pose proof (Nat.div_mod (w + c - 1) c ltac:(lia)) as Hd.
    pose proof (Nat.mod_upper_bound (w + c - 1) c ltac:(lia)). fold (ceil w c) in Hd. set (a := ceil w c) in *.
    unfold in_tile. split.
    + intros [i [j [Ht Hw]]]. split; [nia|]. destruct (le_lt_dec I (J + a)) as [h|h]; [exact h|]. nia.
    + intros [H1 H2]. destruct (Nat.eq_dec I J) as [->|Hne].
      * exists (J * c)%nat, (J * c)%nat. nia.
      * exists (I * c)%nat, (J * c + c - 1)%nat. nia.
  - apply sum_ext; intros I HI. now apply count_back.
  - rewrite <- sum_const. apply sum_le; intros I _. rewrite <- S_INR. apply le_INR. lia.
Qed.

(** ** What is frozen *)

(** The scores move by tS. A backward that keeps P sees it stand still, one that keeps L sees it move
  by P ∘ tS, and only
    one that makes P again sees the change of softmax. *)
Theorem eq_gpu_frozen n_q n_k (M : mask) (S : R -> tensor [n_q; n_k]) t (tS : tensor [n_q; n_k]) :
  let P := softmax M (S t) in
  let L := logsumexp M (S t) in
  moves S t tS ->
  moves (s := [n_q; n_k]) (fun _ => P) t zero /\
  moves (s := [n_q; n_k]) (fun u i j => if M i j then exp (S u i j - L i) else 0) t (P ∘ tS) /\
  moves (s := [n_q; n_k]) (fun u => softmax M (S u)) t (fun i j => P i j * (tS i j - rowsum (P ∘ tS) i)).
Proof.
  intros P L H. split; [apply moves_const|]. split; [|exact (softmax_moves M S t tS H)].
  intros i Hi j Hj. unfold hadamard, P. rewrite (weights_from_L M (S t) i j Hj). fold L.
  destruct (M i j); [|eapply derive_eq; [apply derive_const|ring]].
  apply (derive_exp (fun u => S u i j - L i)). eapply derive_eq.
  - apply (derive_minus (fun u => S u i j)); [exact (H i Hi j Hj)|apply derive_const].
  - cbv beta. ring.
Qed.
