(** * Numerics (chapter 10)

    The identities that chapter 10 builds on. They are exact; what floats make of them is measured there, and is no
    theorem. One bound starts from the usual model of a rounding, written as its hypothesis. *)

From attnbook Require Export masks.

(** ** Where the scale goes, what is common to a row, D *)

(** On paper it does not matter where the scale goes. *)
Theorem eq_num_scale_first n_q n_k d_k scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) :
  equal (scale • (Q × K^T)) ((scale • Q) × K^T).
Proof. intros i _ j _. unfold scaled, matmul. simpl. rewrite sum_l. apply sum_ext; intros. ring. Qed.

(** A vector x, added to all values, adds a constant a_i = dO_i · x to row i of dP, and dS stays as it is. *)
Theorem eq_num_row_constant n_q n_k d_v (M : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v])
    (dO : tensor [n_q; d_v])
    (x : tensor [d_v]) :
  let P := softmax M S in
  let dP := dO × V^T in
  let V' : tensor [n_k; d_v] := fun j l => V j l + x l in
  let dP' := dO × V'^T in
  let a := fun i => ∑ l < d_v, dO i l * x l in
  (forall i j, dP' i j = dP i j + a i) /\
  equal (s := [n_q; n_k]) (fun i j => P i j * (dP' i j - rowsum (P ∘ dP') i))
    (fun i j => P i j * (dP i j - rowsum (P ∘ dP) i)).
Proof.
  intros P dP V' dP' a.
  assert (H : forall i j, dP' i j = dP i j + a i).
  { intros i j. unfold dP', dP, matmul, transpose, V', a. rewrite <- sum_plus. apply sum_ext; intros. ring. }
  split; [exact H|]. intros i _ j Hj. simpl. destruct (M i j) eqn:HM.
  - rewrite H. unfold rowsum, hadamard.
    rewrite (sum_ext n_k (fun k => P i k * dP' i k) (fun k => P i k * dP i k + P i k * a i))
      by (intros; rewrite H; ring).
    assert (H1 : sum n_k (P i) = 1) by (apply softmax_sum; exists j; auto).
    rewrite sum_plus, <- (sum_r (a i) n_k (P i)), H1. ring.
  - unfold P. rewrite softmax_forbidden by exact HM. ring.
Qed.

(** D can be had from the output: Σ_l dO O is the row's average of dP. *)
Lemma D_from_output {n_q n_k d_v} (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) i :
  rowsum (dO ∘ (P × V)) i = ∑ k < n_k, P i k * (dO × V^T) i k.
Proof.
  unfold rowsum, hadamard, matmul, transpose.
  transitivity (∑ l < d_v, ∑ k < n_k, dO i l * (P i k * V k l)); [apply sum_ext; intros; apply sum_l|].
  rewrite sum_swap. apply sum_ext; intros k _. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

(** An output that is off by ΔO makes D off by one number a row, and dS, dQ and dK by what is linear in it: the error of
    dQ_i points to the average key. *)
Theorem eq_num_D_error n_q n_k d_k d_v scale (P dP : tensor [n_q; n_k]) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (dO O ΔO : tensor [n_q; d_v]) :
  let D := rowsum (dO ∘ O) in
  let D' := rowsum (dO ∘ (O ⊕ ΔO)) in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - D i) in
  let dS' : tensor [n_q; n_k] := fun i j => P i j * (dP i j - D' i) in
  let ΔD := fun i => ∑ l < d_v, dO i l * ΔO i l in
  (forall i, D' i - D i = ΔD i) /\
  (forall i j, dS' i j - dS i j = - P i j * ΔD i) /\
  (forall i c, (scale • (dS' × K)) i c - (scale • (dS × K)) i c = - scale * ΔD i * ∑ j < n_k, P i j * K j c) /\
  (forall j c, (scale • (dS'^T × Q)) j c - (scale • (dS^T × Q)) j c = - scale * ∑ i < n_q, P i j * ΔD i * Q i c).
Proof.
  intros D D' dS dS' ΔD.
  assert (HD : forall i, D' i - D i = ΔD i).
  { intro i. unfold D', D, ΔD, rowsum, hadamard, add. rewrite <- sum_minus. apply sum_ext; intros. ring. }
  assert (HS : forall i j, dS' i j - dS i j = - P i j * ΔD i) by (intros i j; rewrite <- HD; unfold dS', dS; ring).
  split; [exact HD|]. split; [exact HS|]. split; intros i c; unfold scaled, matmul, transpose.
  - rewrite <- Rmult_minus_distr_l, <- sum_minus. rewrite (sum_ext n_k _ (fun j => - ΔD i * (P i j * K j c))).
    + rewrite <- sum_l. ring.
    + intros j _. rewrite <- Rmult_minus_distr_r, HS. ring.
  - rewrite <- Rmult_minus_distr_l, <- sum_minus. rewrite (sum_ext n_q _ (fun k => - (P k i * ΔD k * Q k c))).
    + rewrite sum_opp. ring.
    + intros j _. rewrite <- Rmult_minus_distr_r, HS. ring.
Qed.

(** The backward is linear in dO: α times dO makes α times dQ, dK and dV. *)
Theorem eq_num_linear n_q n_k d_k d_v (M : mask) scale α (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dS := fun (dO : tensor [n_q; d_v]) => (fun i j => P i j * ((dO × V^T) i j - rowsum (P ∘ (dO × V^T)) i))
    : tensor [n_q; n_k] in
  equal (scale • (dS (α • dO) × K)) (α • (scale • (dS dO × K))) /\
  equal (scale • ((dS (α • dO))^T × Q)) (α • (scale • ((dS dO)^T × Q))) /\
  equal (P^T × (α • dO)) (α • (P^T × dO)).
Proof.
  intros P dS.
  assert (HP : forall i j, ((α • dO) × V^T) i j = α * (dO × V^T) i j).
  { intros i j. unfold scaled, matmul. rewrite sum_l. apply sum_ext; intros. ring. }
  assert (HS : forall i j, dS (α • dO) i j = α * dS dO i j).
  { intros i j. unfold dS. rewrite HP. unfold rowsum, hadamard.
    rewrite (sum_ext n_k _ (fun k => α * (P i k * (dO × V^T) i k))) by (intros; rewrite HP; ring). rewrite <- sum_l.
    ring. }
  split; [|split].
  - intros i _ c _. unfold scaled at 1 3 4, matmul. simpl. rewrite !sum_l. apply sum_ext; intros. rewrite HS. ring.
  - intros i _ c _. unfold scaled at 1 3 4, matmul, transpose. simpl. rewrite !sum_l. apply sum_ext; intros.
    rewrite HS. ring.
  - intros i _ c _. unfold scaled, matmul, transpose. simpl. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

(** ** What an error becomes *)

(** One rounding after everything else: fl, which moves any number by at most u times its size (so without overflow or
    underflow), makes of y + Δ something that is off by u|y| + (1 + u)|Δ| at most. *)
Theorem eq_num_round_once (fl : R -> R) u y Δ :
    (forall x, Rabs (fl x - x) <= u * Rabs x) -> 0 <= u ->
  Rabs (fl (y + Δ) - y) <= u * Rabs y + (1 + u) * Rabs Δ.
Proof.
  intros Hfl Hu. replace (fl (y + Δ) - y) with ((fl (y + Δ) - (y + Δ)) + Δ) by ring.
  eapply Rle_trans; [apply Rabs_triang|]. pose proof (Hfl (y + Δ)). pose proof (Rabs_triang y Δ).
  pose proof (Rmult_le_compat_l u _ _ Hu H0). lra.
Qed.

Lemma exp_near x : Rabs x <= / 2 -> Rabs (exp x - 1 - x) <= 2 * (x * x).
Proof.
  intro H. apply Rabs_le_between in H.
  assert (H1 : 1 + x <= exp x) by apply exp_ineq1_le.
  assert (H2 : 1 - x <= exp (- x)) by (pose proof (exp_ineq1_le (- x)); lra).
  assert (H3 : exp x * (1 - x) <= 1).
  { apply Rle_trans with (exp x * exp (- x)); [apply Rmult_le_compat_l; [apply Rlt_le, exp_pos|exact H2]|].
    rewrite <- exp_plus, Rplus_opp_r, exp_0. lra. }
  rewrite Rabs_right by lra. apply (Rmult_le_reg_r (1 - x)); [lra|]. nra.
Qed.

(** An absolute error Δ of the exponent is a relative error of the weight: the factor is e^Δ, and that is 1 + Δ up to
    twice Δ², for |Δ| up to one half. *)
Theorem eq_num_weights S L Δ :
  exp (S + Δ - L) / exp (S - L) = exp Δ /\
  (Rabs Δ <= / 2 -> Rabs (exp Δ - (1 + Δ)) <= 2 * Δ ^ 2).
Proof.
  split.
  - replace (S + Δ - L) with ((S - L) + Δ) by ring. rewrite exp_plus. field. apply Rgt_not_eq, exp_pos.
  - intro H. replace (exp Δ - (1 + Δ)) with (exp Δ - 1 - Δ) by ring. replace (Δ ^ 2) with (Δ * Δ) by ring.
    now apply exp_near.
Qed.

(** If no score of the row is off by more than Δ_max, no weight of an allowed key is off by a factor beyond e^(±2
    Δ_max). *)
Theorem eq_num_softmax_condition n_q n_k (M : mask) (S Δ : tensor [n_q; n_k]) Δ_max i j :
    (forall k, (k < n_k)%nat -> Rabs (Δ i k) <= Δ_max) -> (j < n_k)%nat -> M i j = true ->
  exp (- 2 * Δ_max) <= softmax M (S ⊕ Δ) i j / softmax M S i j <= exp (2 * Δ_max).
Proof.
  intros HΔ Hj HM.
  assert (HE : forall k, (k < n_k)%nat -> exp (- Δ_max) * E M S i k <= E M (S ⊕ Δ) i k <= exp Δ_max * E M S i k).
  { intros k Hk. pose proof (HΔ k Hk) as H. apply Rabs_le_between in H. unfold E, add. destruct (M i k); [|lra].
    rewrite <- !exp_plus. split.
    - destruct (Req_dec (Δ i k) (- Δ_max)) as [->|]; [right; f_equal; ring|left; apply exp_increasing; lra].
    - destruct (Req_dec (Δ i k) Δ_max) as [->|]; [right; f_equal; ring|left; apply exp_increasing; lra]. }
  assert (HZ : exp (- Δ_max) * Z M S i <= Z M (S ⊕ Δ) i <= exp Δ_max * Z M S i).
  { unfold Z. rewrite !sum_l. split; apply sum_le; intros k Hk; now apply HE. }
  pose proof (Z_pos M S i j Hj HM) as Z1. pose proof (Z_pos M (S ⊕ Δ) i j Hj HM) as Z2.
  assert (E1 : 0 < E M S i j) by (unfold E; rewrite HM; apply exp_pos).
  replace (softmax M (S ⊕ Δ) i j / softmax M S i j) with ((E M (S ⊕ Δ) i j * Z M S i) / (E M S i j * Z M (S ⊕ Δ) i))
    by (unfold softmax; field; lra).
  replace (- 2 * Δ_max) with (- Δ_max + - Δ_max) by ring. replace (2 * Δ_max) with (Δ_max + Δ_max) by ring.
  rewrite !exp_plus.
  destruct (HE j Hj) as [Ea Eb]. destruct HZ as [Za Zb].
  set (a := exp (- Δ_max)) in *. set (b := exp Δ_max) in *.
  assert (ab : a * b = 1) by (unfold a, b; rewrite <- exp_plus, Rplus_opp_l; apply exp_0).
  assert (Ha : 0 < a) by apply exp_pos. assert (Hb : 0 < b) by apply exp_pos.
  set (e := E M S i j) in *. set (e' := E M (S ⊕ Δ) i j) in *. set (z := Z M S i) in *. set (z' := Z M (S ⊕ Δ) i) in *.
  assert (He : 0 < e * z') by now apply Rmult_lt_0_compat.
  assert (za : a * z' <= z) by (replace z with (a * (b * z))
    by (rewrite <- Rmult_assoc, ab; ring); apply Rmult_le_compat_l; lra).
  assert (zb : z <= b * z') by (replace z with (b * (a * z))
    by (rewrite <- Rmult_assoc, (Rmult_comm b), ab; ring); apply Rmult_le_compat_l; lra).
  split; apply (Rmult_le_reg_r (e * z')); auto; replace (e' * z / (e * z') * (e * z')) with (e' * z) by (field; lra).
  - replace (a * a * (e * z')) with ((a * e) * (a * z')) by ring. apply Rmult_le_compat; nra.
  - replace (b * b * (e * z')) with ((b * e) * (b * z')) by ring. apply Rmult_le_compat; nra.
Qed.

(** ** Base two *)

Definition log2 (x : R) : R := ln x / ln 2.

Lemma ln2_pos : 0 < ln 2.
Proof. rewrite <- ln_1. apply ln_increasing; lra. Qed.

Lemma log2_e : log2 (exp 1) = / ln 2.
Proof. unfold log2. rewrite ln_exp. unfold Rdiv. ring. Qed.

(** A factor log₂ e in a score makes 2 to the score what was e to it. *)
Lemma two_to x : Rpower 2 (log2 (exp 1) * x) = exp x.
Proof. unfold Rpower. f_equal. rewrite log2_e. field. pose proof ln2_pos. lra. Qed.

(** With scale · log₂ e in the keys, scores and log-sum-exp are in bits, and the weights of the allowed keys are the
    same. In a dead row L is a constant here (Coq's ln 0 = 0). *)
Theorem eq_num_base_two n_q n_k d_k (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) :
  let K' := (scale * log2 (exp 1)) • K in
  let S := scale • (Q × K^T) in
  let S' := Q × K'^T in
  let L := logsumexp M S in
  let L' := fun i => log2 (∑ j < n_k, (if M i j then Rpower 2 (S' i j) else 0)) in
  (forall i j, S' i j = log2 (exp 1) * S i j) /\
  (forall i, L' i = log2 (exp 1) * L i) /\
  (forall i j, exp (S i j - L i) = Rpower 2 (S' i j - L' i)).
Proof.
  intros K' S S' L L'.
  assert (HS : forall i j, S' i j = log2 (exp 1) * S i j).
  { intros i j. unfold S', S, K', scaled, matmul, transpose. rewrite !sum_l. apply sum_ext; intros. ring. }
  assert (HL : forall i, L' i = log2 (exp 1) * L i).
  { intro i. unfold L', L, logsumexp. rewrite (sum_ext n_k _ (E M S i)).
    - change (log2 (Z M S i) = log2 (exp 1) * ln (Z M S i)). rewrite log2_e. unfold log2. unfold Rdiv. ring.
    - intros j _. unfold E. destruct (M i j); [|reflexivity]. rewrite HS. apply two_to. }
  split; [exact HS|]. split; [exact HL|]. intros i j. rewrite HS, HL, <- Rmult_minus_distr_l. symmetry. apply two_to.
Qed.

(** The kernel that has only the keys in bits owes dQ the factor ln 2; dK is as ever. *)
Theorem eq_num_base_two_grads n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let K' := (scale * log2 (exp 1)) • K in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - rowsum (P ∘ dP) i) in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q (ln 2 • (dS × K')) /\
  gradient (fun K => ℓ (attention M scale Q K V B)) K (scale • (dS^T × Q)).
Proof.
  intros K' P dP dS H. split; [|exact (gradient_K M scale Q K V B ℓ dO H)].
  refine (gradient_ext _ _ _ _ _ (gradient_Q M scale Q K V B ℓ dO H)). intros i _ c _.
  change (scale * (∑ j < n_k, dS i j * K j c) = ln 2 * ∑ j < n_k, dS i j * (scale * log2 (exp 1) * K j c)).
  rewrite !sum_l. apply sum_ext; intros j _. rewrite log2_e. field. pose proof ln2_pos. lra.
Qed.

(** ** Blocks *)

(** Blocks of any lengths, one after the other: block I has [c I] rows, and begins at row [start c I]. *)
Fixpoint start (c : nat -> nat) (I : nat) : nat :=
  match I with
  | O => O
  | S before => (start c before + c before)%nat
  end.

Definition block_rows (c : nat -> nat) (I : nat) {n p} (A : tensor [n; p]) : tensor [c I; p] :=
  fun i => A (start c I + i)%nat.
Definition tile (r c : nat -> nat) (I J : nat) {m n} (A : tensor [m; n]) : tensor [r I; c J] :=
  fun i j => A (start r I + i)%nat (start c J + j)%nat.

(** A sum is a sum over blocks, of any number and any lengths. *)
Lemma sum_blocks c N f : sum (start c N) f = ∑ I < N, ∑ i < c I, f (start c I + i)%nat.
Proof. induction N as [|N IH]; simpl; [reflexivity|]. rewrite sum_add, IH. reflexivity. Qed.

Lemma in_a_block c N i : (i < start c N)%nat -> exists I k, (I < N)%nat /\ (k < c I)%nat /\ i = (start c I + k)%nat.
Proof.
  induction N as [|N IH]; simpl; [lia|]. intro H. destruct (lt_dec i (start c N)) as [Hi|Hi].
  - destruct (IH Hi) as [I [k [HI [Hk ->]]]]. exists I, k. auto.
  - exists N, (i - start c N)%nat. repeat split; lia.
Qed.

(** Equal blocks are a case of it. *)
Lemma start_equal c N : start (fun _ => c) N = (N * c)%nat.
Proof. induction N as [|N IH]; simpl; [reflexivity|]. rewrite IH. lia. Qed.

(** Cut the queries and the keys into blocks of any lengths: what adds up over the tiles is the gradient. *)
Theorem eq_num_blocks (N_q N_k : nat) (r c : nat -> nat) d_k d_v (M : mask) scale (Q : tensor [start r N_q; d_k])
    (K : tensor [start c N_k; d_k]) (V : tensor [start c N_k; d_v]) (B : tensor [start r N_q; start c N_k])
    (ℓ : tensor [start r N_q; d_v] -> R) (dO : tensor [start r N_q; d_v]) (dQ : tensor [start r N_q; d_k])
    (dK : tensor [start c N_k; d_k]) (dV : tensor [start c N_k; d_v]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [start r N_q; start c N_k] := fun i j => P i j * (dP i j - rowsum (P ∘ dP) i) in
  gradient ℓ (attention M scale Q K V B) dO ->
  (forall J, (J < N_k)%nat ->
    equal (block_rows c J dK) (fun j a => scale * ∑ I < N_q, ((tile r c I J dS)^T × block_rows r I Q) j a) /\
    equal (block_rows c J dV) (fun j l => ∑ I < N_q, ((tile r c I J P)^T × block_rows r I dO) j l)) ->
  (forall I, (I < N_q)%nat ->
    equal (block_rows r I dQ) (fun i a => scale * ∑ J < N_k, (tile r c I J dS × block_rows c J K) i a)) ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q dQ /\
  gradient (fun K => ℓ (attention M scale Q K V B)) K dK /\
  gradient (fun V => ℓ (attention M scale Q K V B)) V dV.
Proof.
  intros P dP dS H HK HQ. split; [|split].
  - refine (gradient_ext _ _ _ _ _ (gradient_Q M scale Q K V B ℓ dO H)). intros i Hi a Ha.
    destruct (in_a_block r N_q i Hi) as [I [k [HI [Hk ->]]]]. pose proof (HQ I HI k Hk a Ha) as HE.
    unfold block_rows at 1 in HE.
    simpl in HE |- *. rewrite HE. unfold scaled, matmul. f_equal. exact (sum_blocks c N_k _).
  - refine (gradient_ext _ _ _ _ _ (gradient_K M scale Q K V B ℓ dO H)). intros j Hj a Ha.
    destruct (in_a_block c N_k j Hj) as [J [k [HJ [Hk ->]]]]. pose proof (proj1 (HK J HJ) k Hk a Ha) as HE.
    unfold block_rows at 1 in HE.
    simpl in HE |- *. rewrite HE. unfold scaled, matmul, transpose. f_equal. exact (sum_blocks r N_q _).
  - refine (gradient_ext _ _ _ _ _ (gradient_V M scale Q K V B ℓ dO H)). intros j Hj l Hl.
    destruct (in_a_block c N_k j Hj) as [J [k [HJ [Hk ->]]]]. pose proof (proj2 (HK J HJ) k Hk l Hl) as HE.
    unfold block_rows at 1 in HE.
    simpl in HE |- *. rewrite HE. unfold matmul, transpose. exact (sum_blocks r N_q _).
Qed.

(** ** Clipping *)

(** N arrays, array T with m T rows and n T columns. *)
Definition inner N (m n : nat -> nat) (a b : nat -> nat -> nat -> R) : R :=
  ∑ T < N, ∑ i < m T, ∑ j < n T, a T i j * b T i j.
Definition norm N m n (a : nat -> nat -> nat -> R) : R := sqrt (inner N m n a a).
Definition clip N m n limit (a : nat -> nat -> nat -> R) : nat -> nat -> nat -> R :=
  fun T i j => a T i j * Rmin 1 (limit / norm N m n a).

(** One factor for all arrays: the length is bounded by the limit, and the direction stays. *)
Theorem eq_num_clip N (m n : nat -> nat) limit (dθ : nat -> nat -> nat -> R) :
  0 <= limit ->
  norm N m n (clip N m n limit dθ) = Rmin (norm N m n dθ) limit /\
  (0 < limit -> 0 < norm N m n dθ ->
    inner N m n (clip N m n limit dθ) dθ / (norm N m n (clip N m n limit dθ) * norm N m n dθ) = 1).
Proof.
  intro Hl. set (f := Rmin 1 (limit / norm N m n dθ)). set (s := inner N m n dθ dθ).
  assert (Hs : 0 <= s) by (repeat (apply sum_nonneg; intros); apply Rle_0_sqr).
  assert (H1 : inner N m n (clip N m n limit dθ) dθ = f * s).
  { unfold s, inner. rewrite sum_l. apply sum_ext; intros. rewrite sum_l. apply sum_ext; intros. rewrite sum_l.
    apply sum_ext; intros. unfold clip. fold f. ring. }
  assert (H2 : inner N m n (clip N m n limit dθ) (clip N m n limit dθ) = f * f * s).
  { unfold s, inner. rewrite sum_l. apply sum_ext; intros. rewrite sum_l. apply sum_ext; intros. rewrite sum_l.
    apply sum_ext; intros. unfold clip. fold f. ring. }
  assert (Hn : norm N m n dθ = sqrt s) by reflexivity.
  assert (Hf : 0 <= f).
  { unfold f. apply Rmin_glb; [lra|]. rewrite Hn. destruct (Req_dec (sqrt s) 0) as [->|].
    - unfold Rdiv. rewrite Rinv_0. lra.
    - apply Rdiv_le_0_compat; [exact Hl|]. pose proof (sqrt_pos s). lra. }
  assert (H3 : norm N m n (clip N m n limit dθ) = f * sqrt s).
  { unfold norm. rewrite H2. rewrite sqrt_mult by (auto; apply Rle_0_sqr). rewrite sqrt_square by exact Hf.
    reflexivity. }
  split.
  - rewrite H3, Hn. unfold f. rewrite Hn. pose proof (sqrt_pos s). destruct (Req_dec (sqrt s) 0) as [->|].
    + rewrite (Rmin_left 0 limit) by exact Hl. ring.
    + unfold Rmin. assert (Hd : limit / sqrt s * sqrt s = limit) by (field; lra).
      destruct (Rle_dec 1 (limit / sqrt s)), (Rle_dec (sqrt s) limit); nra.
  - intros Hl' Hn'. rewrite H1, H3, Hn. rewrite Hn in Hn'. rewrite <- (sqrt_sqrt s Hs) at 1.
    assert (0 < f) by (unfold f; apply Rmin_glb_lt; [lra|rewrite Hn; now apply Rdiv_lt_0_compat]). field. lra.
Qed.
