(** * Biases: broadcast, by distance, on a slope (chapter 9)

    A number that many pairs use gets the sum of what comes back from all its uses. *)

From attnbook Require Export steps.

(** ** Broadcasting

    An axis of a bias is [stretched] when it has the size 1 and serves a whole axis of the scores. *)

Definition axis (stretched : bool) (n : nat) : nat := if stretched then 1%nat else n.
Definition stretch (stretched : bool) (i : nat) : nat := if stretched then 0%nat else i.

(** The sum over an axis that was stretched; nothing happens to another one. *)
Definition over (stretched : bool) (n : nat) (f : nat -> R) (i : nat) : R := if stretched then ∑ k < n, f k else f i.

Lemma over_1 s n (f y : nat -> R) : ∑ i < n, f i * y (stretch s i) = ∑ i < axis s n, over s n f i * y i.
Proof. destruct s; [|reflexivity]. unfold axis. cbn [sum over stretch]. rewrite Rplus_0_l. symmetry. apply sum_r. Qed.

Lemma over_2 s n n' (f y : nat -> nat -> R) :
  ∑ i < n, ∑ j < n', f i j * y (stretch s i) j = ∑ i < axis s n, ∑ j < n', over s n (fun i => f i j) i * y i j.
Proof.
  destruct s; [|reflexivity]. rewrite sum_swap. unfold axis. cbn [sum]. rewrite Rplus_0_l.
  apply sum_ext; intros j _. rewrite (over_1 true n (fun i => f i j) (fun i => y i j)). simpl. ring.
Qed.

Lemma over_3 s n n' n'' (f y : nat -> nat -> nat -> R) :
  ∑ i < n, ∑ j < n', ∑ k < n'', f i j k * y (stretch s i) j k =
  ∑ i < axis s n, ∑ j < n', ∑ k < n'', over s n (fun i => f i j k) i * y i j k.
Proof.
  destruct s; [|reflexivity]. rewrite sum_swap. unfold axis. cbn [sum]. rewrite Rplus_0_l.
  apply sum_ext; intros j _. rewrite (over_2 true n n'' (fun i k => f i j k) (fun i k => y i j k)). unfold axis.
  cbn [sum]. ring.
Qed.

Lemma over_4 s n n' n'' m (f y : nat -> nat -> nat -> nat -> R) :
  ∑ i < n, ∑ j < n', ∑ k < n'', ∑ l < m, f i j k l * y (stretch s i) j k l =
  ∑ i < axis s n, ∑ j < n', ∑ k < n'', ∑ l < m, over s n (fun i => f i j k l) i * y i j k l.
Proof.
  destruct s; [|reflexivity]. rewrite sum_swap. unfold axis. cbn [sum]. rewrite Rplus_0_l.
  apply sum_ext; intros j _. rewrite (over_3 true n n'' m (fun i k l => f i j k l) (fun i k l => y i j k l)).
  unfold axis. cbn [sum]. ring.
Qed.

(** ** A bias for each pair, in every head of every sample *)

Lemma attention_moves_B {n_q n_k d_k d_v} (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (b : R -> tensor [n_q; n_k]) t tB :
  moves b t tB ->
  moves (s := [n_q; d_v]) (fun u => attention M scale Q K V (b u)) t (centered (weights M scale Q K (b t)) tB × V).
Proof.
  intro H. apply (product_moves_l (fun u => weights M scale Q K (b u)) V).
  apply (softmax_moves M (fun u => scores scale Q K (b u))). intros i Hi j Hj. unfold scores, add.
  eapply derive_eq; [apply (derive_plus (fun _ => (scale • (Q × K^T)) i j) (fun u => b u i j));
    [apply derive_const|now apply H]|].
  ring.
Qed.

Definition stack_of_heads {b h n_q n_k d_k d_v} (M : nat -> nat -> mask) scale (Q : tensor [b; h; n_q; d_k])
  (K : tensor [b; h; n_k; d_k]) (V : tensor [b; h; n_k; d_v]) (B : tensor [b; h; n_q; n_k]) : tensor [b; h; n_q; d_v] :=
  fun c g => attention (M c g) scale Q.[c].[g] K.[c].[g] V.[c].[g] B.[c].[g].

(** From the output back to the scores, in every head of every sample. *)
Definition heads_dS {b h n_q n_k d_k d_v} (M : nat -> nat -> mask) scale (Q : tensor [b; h; n_q; d_k])
  (K : tensor [b; h; n_k; d_k]) (V : tensor [b; h; n_k; d_v]) (B : tensor [b; h; n_q; n_k])
  (dO : tensor [b; h; n_q; d_v])
  : tensor [b; h; n_q; n_k] :=
  fun c g => centered (weights (M c g) scale Q.[c].[g] K.[c].[g] B.[c].[g]) (dO.[c].[g] × V.[c].[g]^T).

Definition broadcast {sb sh sq sk b h n_q n_k} (B : tensor [axis sb b; axis sh h; axis sq n_q; axis sk n_k])
  : tensor [b; h; n_q; n_k] := fun c g i j => B (stretch sb c) (stretch sh g) (stretch sq i) (stretch sk j).

Lemma broadcast_adjoint {sb sh sq sk b h n_q n_k} (dS : tensor [b; h; n_q; n_k])
    (tB : tensor [axis sb b; axis sh h; axis sq n_q; axis sk n_k]) :
  ⟨dS, broadcast tB⟩ =
  dot (s := [axis sb b; axis sh h; axis sq n_q; axis sk n_k])
    (fun c g i j =>
      over sb b (fun c => over sh h (fun g => over sq n_q (fun i => over sk n_k (fun j => dS c g i j) j) i) g) c) tB.
Proof.
  cbn [dot]. unfold broadcast. rewrite <- over_4. apply sum_ext; intros c _.
  rewrite <- (over_3 sh h (axis sq n_q) (axis sk n_k)
    (fun g i j => over sq n_q (fun i => over sk n_k (fun j => dS c g i j) j) i) (fun g i j => tB (stretch sb c) g i j)).
  apply sum_ext; intros g _.
  rewrite <- (over_2 sq n_q (axis sk n_k) (fun i j => over sk n_k (fun j => dS c g i j) j)
    (fun i j => tB (stretch sb c) (stretch sh g) i j)).
  apply sum_ext; intros i _.
  exact (over_1 sk n_k (fun j => dS c g i j) (fun j => tB (stretch sb c) (stretch sh g) (stretch sq i) j)).
Qed.

Lemma heads_B {s} {b h n_q n_k d_k d_v} (M : nat -> nat -> mask) scale (Q : tensor [b; h; n_q; d_k])
    (K : tensor [b; h; n_k; d_k])
    (V : tensor [b; h; n_k; d_v]) (F : tensor s -> tensor [b; h; n_q; n_k]) (X dX : tensor s) ℓ dO :
  (forall x t tX, moves x t tX -> moves (fun u => F (x u)) t (F tX)) ->
  (forall tX, ⟨heads_dS M scale Q K V (F X) dO, F tX⟩ = ⟨dX, tX⟩) ->
  gradient ℓ (stack_of_heads M scale Q K V (F X)) dO ->
  gradient (fun X => ℓ (stack_of_heads M scale Q K V (F X))) X dX.
Proof.
  intros HF Hadj. set (P := fun c g => weights (M c g) scale Q.[c].[g] K.[c].[g] (F X).[c].[g]).
  apply (backward (fun X => stack_of_heads M scale Q K V (F X)) X (fun tX c g => centered (P c g) (F tX).[c].[g] × V.[c].[g])
    ℓ dO dX).
  - intros x t tX Hx Ht c Hc g Hg. unfold P. rewrite <- Hx.
    apply (attention_moves_B (M c g) scale Q.[c].[g] K.[c].[g] V.[c].[g] (fun u => (F (x u)).[c].[g])).
      exact (HF x t tX Ht c Hc g Hg).
  - intro tX. rewrite <- Hadj. cbn [dot]. apply sum_ext; intros c _. apply sum_ext; intros g _.
    change (⟨dO.[c].[g], centered (P c g) (F tX).[c].[g] × V.[c].[g]⟩
      = ⟨(heads_dS M scale Q K V (F X) dO).[c].[g], (F tX).[c].[g]⟩).
    rewrite dot_matmul_r, centered_adjoint. reflexivity.
Qed.

(** ** The chapter's theorems *)

(** A bias may have the size 1 on any axis: samples, heads, queries, keys. Its gradient is dS, summed over just those
    axes, and without the scale. *)
Theorem eq_var_bias (sb sh sq sk : bool) b h n_q n_k d_k d_v (M : nat -> nat -> mask) scale
    (Q : tensor [b; h; n_q; d_k])
    (K : tensor [b; h; n_k; d_k]) (V : tensor [b; h; n_k; d_v])
    (B : tensor [axis sb b; axis sh h; axis sq n_q; axis sk n_k]) (ℓ : tensor [b; h; n_q; d_v] -> R)
    (dO : tensor [b; h; n_q; d_v]) :
  let dS c g i j :=
    let P := weights (M c g) scale Q.[c].[g] K.[c].[g] (broadcast B).[c].[g] in
    let dP := dO.[c].[g] × V.[c].[g]^T in
    P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (fun c g => attention (M c g) scale Q.[c].[g] K.[c].[g] V.[c].[g] (broadcast B).[c].[g]) dO ->
  gradient (fun B => ℓ (fun c g => attention (M c g) scale Q.[c].[g] K.[c].[g] V.[c].[g] (broadcast B).[c].[g])) B
    (fun c g i j =>
      over sb b (fun c => over sh h (fun g => over sq n_q (fun i => over sk n_k (fun j => dS c g i j) j) i) g) c).
Proof.
  intros dS. apply (heads_B M scale Q K V broadcast B).
  - intros x t tX Ht c Hc g Hg i Hi j Hj. apply Ht; unfold axis, stretch;
      [destruct sb|destruct sh|destruct sq|destruct sk]; lia.
  - intro tX. exact (broadcast_adjoint dS tX).
Qed.

(** A bias with one number a row, whatever else it is stretched over, gets exactly 0: softmax does not see it. *)
Theorem bias_of_a_row_gets_nothing (sb sh sq : bool) b h n_q n_k d_k d_v (M : nat -> nat -> mask) scale
    (Q : tensor [b; h; n_q; d_k]) (K : tensor [b; h; n_k; d_k]) (V : tensor [b; h; n_k; d_v])
    (B : tensor [axis sb b; axis sh h; axis sq n_q; axis true n_k]) (ℓ : tensor [b; h; n_q; d_v] -> R)
    (dO : tensor [b; h; n_q; d_v]) :
  gradient ℓ (stack_of_heads M scale Q K V (broadcast (sk := true) B)) dO ->
  gradient (fun B => ℓ (stack_of_heads M scale Q K V (broadcast (sk := true) B))) B (fun _ _ _ _ => 0).
Proof.
  intro H. refine (gradient_ext _ _ _ _ _ (eq_var_bias sb sh sq true b h n_q n_k d_k d_v M scale Q K V B ℓ dO H)).
  intros c _ g _ i _ j _.
  assert (H0 : forall s n f k, (forall k, f k = 0) -> over s n f k = 0).
  { intros s n f k Hf. destruct s; [apply sum_0; intros|]; apply Hf. }
  apply H0; intro c'. apply H0; intro g'. apply H0; intro i'.
  exact (centered_sums_to_0 (M c' g') _ _ i').
Qed.

(** ** A table of distances *)

Section table.
  Context {n_q n_k : nat} (m : nat) (bucket : nat -> nat -> nat).
  Hypothesis Hbucket : forall i j, (i < n_q)%nat -> (j < n_k)%nat -> (bucket i j < m)%nat.

  Definition scatter_add (dS : tensor [n_q; n_k]) : tensor [m] :=
    fun r => ∑ i < n_q, ∑ j < n_k, if bucket i j =? r then dS i j else 0.

  Lemma scatter_adjoint (dS : tensor [n_q; n_k]) (T : tensor [m]) :
    ⟨dS, (fun i j => T (bucket i j)) : tensor [n_q; n_k]⟩ = ⟨scatter_add dS, T⟩.
  Proof.
    simpl. transitivity (∑ i < n_q, ∑ j < n_k, ∑ r < m, (if bucket i j =? r then dS i j else 0) * T r).
    - apply sum_ext; intros i Hi. apply sum_ext; intros j Hj.
      rewrite (sum_one m (bucket i j)); [now rewrite Nat.eqb_refl|now apply Hbucket|].
      intros r _ Hr. destruct (Nat.eqb_spec (bucket i j) r); [congruence|ring].
    - unfold scatter_add. transitivity (∑ i < n_q, ∑ r < m, ∑ j < n_k, (if bucket i j =? r then dS i j else 0) * T r).
      + apply sum_ext; intros. apply sum_swap.
      + rewrite sum_swap. apply sum_ext; intros r _. rewrite sum_r. apply sum_ext; intros. now rewrite sum_r.
  Qed.
End table.

(** Each pair (i, j) takes the number of its bucket, by any map. The gradient of a number is the sum of dS' over the
    pairs of its bucket. *)
Theorem eq_var_table_vjp n_q n_k d_k d_v m (bucket : nat -> nat -> nat) (M : mask) scale (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) (T : tensor [m]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K (fun i j => T (bucket i j)) in
  let dP := dO × V^T in
  let dS' := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i j, (i < n_q)%nat -> (j < n_k)%nat -> (bucket i j < m)%nat) ->
  gradient ℓ (attention M scale Q K V (fun i j => T (bucket i j))) dO ->
  gradient (fun T : tensor [m] => ℓ (attention M scale Q K V (fun i j => T (bucket i j)))) T
    (fun r => ∑ i < n_q, ∑ j < n_k, if bucket i j =? r then dS' i j else 0).
Proof.
  intros P dP dS' Hb H.
  pose proof (gradient_B M scale Q K V (fun i j => T (bucket i j)) ℓ dO H) as HB.
  refine (backward (s := [m]) (r := [n_q; n_k]) (fun T i j => T (bucket i j)) T
    (fun T i j => T (bucket i j)) _ _ _ _ _ HB).
  - intros x t tX _ Ht i Hi j Hj. apply Ht. now apply Hb.
  - intro tT. exact (scatter_adjoint m bucket Hb dS' tT).
Qed.

(** All numbers of the table together get 0, whatever the buckets and the mask. *)
Theorem eq_var_table_vjp__total n_q n_k m (bucket : nat -> nat -> nat) (M : mask) (S dP : tensor [n_q; n_k]) :
  let P := softmax M S in
  let dS' := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i j, (i < n_q)%nat -> (j < n_k)%nat -> (bucket i j < m)%nat) ->
  ∑ r < m, ∑ i < n_q, ∑ j < n_k, (if bucket i j =? r then dS' i j else 0) = ∑ i < n_q, ∑ j < n_k, dS' i j /\
  ∑ i < n_q, ∑ j < n_k, dS' i j = 0.
Proof.
  intros P dS' Hb. split.
  - pose proof (scatter_adjoint m bucket Hb dS' (fun _ => 1)) as H. simpl in H. symmetry.
    transitivity (∑ i < n_q, ∑ j < n_k, dS' i j * 1); [apply sum_ext; intros; apply sum_ext; intros; ring|].
    rewrite H. apply sum_ext; intros. unfold scatter_add. ring.
  - apply sum_0; intros i _. exact (centered_sums_to_0 M S dP i).
Qed.

(** ** ALiBi *)

Lemma softmax_shift {m n} (M : mask) (S S' : tensor [m; n]) (c : tensor [m]) :
  (forall i j, (i < m)%nat -> (j < n)%nat -> M i j = true -> S' i j = S i j + c i) ->
    equal (softmax M S') (softmax M S).
Proof.
  intros H i Hi j Hj.
  assert (HE : forall k, (k < n)%nat -> E M S' i k = exp (c i) * E M S i k).
  { intros k Hk. unfold E. destruct (M i k) eqn:HM; [|ring]. rewrite H by assumption. rewrite exp_plus. ring. }
  assert (HZ : Z M S' i = exp (c i) * Z M S i) by (unfold Z; rewrite sum_l; now apply sum_ext).
  simpl. unfold softmax. rewrite HE, HZ by exact Hj. destruct (M i j) eqn:HM.
  - assert (0 < Z M S i) by now apply (Z_pos M S i j). pose proof (exp_pos (c i)). field. lra.
  - rewrite E_forbidden by exact HM. unfold Rdiv. ring.
Qed.

(** Under a causal mask, and under any that lets no query look ahead, ALiBi has the weights of a bias on the keys,
    slope · j. *)
Theorem eq_var_alibi_shift n_q n_k (M : mask) slope (S : tensor [n_q; n_k]) :
  (forall i j, M i j = true -> (j <= i)%nat) ->
  equal (s := [n_q; n_k]) (softmax M (fun i j => S i j - slope * Rabs (INR i - INR j)))
    (softmax M (fun i j => S i j + slope * INR j)).
Proof.
  intro H. apply (softmax_shift M _ _ (fun i => - slope * INR i)). intros i j _ _ HM.
  rewrite Rabs_pos_eq; [ring|]. apply H, le_INR in HM. lra.
Qed.

Lemma slope_back n_q n_k d_k d_v (M : mask) scale slope (Δ : nat -> nat -> R) (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let dS' := centered (weights M scale Q K (fun i j => - slope * Δ i j)) (dO × V^T) in
  gradient ℓ (attention M scale Q K V (fun i j => - slope * Δ i j)) dO ->
  gradient (s := []) (fun slope => ℓ (attention M scale Q K V (fun i j => - slope * Δ i j))) slope
    (- ∑ i < n_q, ∑ j < n_k, dS' i j * Δ i j).
Proof.
  intros dS' H. pose proof (gradient_B M scale Q K V (fun i j => - slope * Δ i j) ℓ dO H) as HB. fold dS' in HB.
  refine (backward (s := []) (r := [n_q; n_k]) (fun slope i j => - slope * Δ i j) slope (fun tX i j => - tX * Δ i j)
    _ _ _ _ _ HB).
  - intros x t tX _ Ht i Hi j Hj. simpl in Ht.
    eapply derive_eq; [apply derive_mult; [apply (derive_opp x); exact Ht|apply derive_const]|cbv beta; ring].
  - intro tX. simpl. rewrite <- sum_opp, sum_r. apply sum_ext; intros. rewrite <- sum_opp, sum_r. apply sum_ext; intros.
    ring.
Qed.

(** A learned slope gets minus the sum of dS' times the distance. *)
Theorem eq_var_alibi_slope n_q n_k d_k d_v (M : mask) scale slope (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K (fun i j => - slope * Rabs (INR i - INR j)) in
  let dP := dO × V^T in
  let dS' := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (attention M scale Q K V (fun i j => - slope * Rabs (INR i - INR j))) dO ->
  gradient (s := []) (fun slope => ℓ (attention M scale Q K V (fun i j => - slope * Rabs (INR i - INR j)))) slope
    (- ∑ i < n_q, ∑ j < n_k, dS' i j * Rabs (INR i - INR j)).
Proof. exact (slope_back n_q n_k d_k d_v M scale slope (fun i j => Rabs (INR i - INR j)) Q K V ℓ dO). Qed.

(** A learned slope where the corner is shifted: the distance is then |j − i − shift|, for any shift. *)
Theorem eq_var_alibi_slope__corner n_q n_k d_k d_v (M : mask) scale slope shift (Q : tensor [n_q; d_k])
    (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K (fun i j => - slope * Rabs (INR j - INR i - shift)) in
  let dP := dO × V^T in
  let dS' := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (attention M scale Q K V (fun i j => - slope * Rabs (INR j - INR i - shift))) dO ->
  gradient (s := [])
    (fun slope => ℓ (attention M scale Q K V (fun i j => - slope * Rabs (INR j - INR i - shift)))) slope
    (- ∑ i < n_q, ∑ j < n_k, dS' i j * Rabs (INR j - INR i - shift)).
Proof. exact (slope_back n_q n_k d_k d_v M scale slope (fun i j => Rabs (INR j - INR i - shift)) Q K V ℓ dO). Qed.

(** Where no query looks ahead, a learned slope gets the sum of dS' times the place of the key. *)
Theorem eq_var_alibi_slope__causal n_q n_k (M : mask) (S dP : tensor [n_q; n_k]) :
  let P := softmax M S in
  let dS' := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i j, M i j = true -> (j <= i)%nat) ->
  - (∑ i < n_q, ∑ j < n_k, dS' i j * Rabs (INR i - INR j)) = ∑ i < n_q, ∑ j < n_k, dS' i j * INR j.
Proof.
  intros P dS' H. rewrite <- sum_opp. apply sum_ext; intros i _.
  transitivity (∑ j < n_k, (dS' i j * INR j - INR i * dS' i j)).
  - rewrite <- sum_opp. apply sum_ext; intros j _. destruct (M i j) eqn:HM.
    + rewrite Rabs_pos_eq; [ring|]. apply H, le_INR in HM. lra.
    + unfold dS'. pose proof (centered_forbidden M S dP i j HM) as H0. unfold centered in H0. fold P in H0.
      rewrite H0. ring.
  - rewrite sum_minus, <- sum_l. pose proof (centered_sums_to_0 M S dP i) as H0. unfold centered in H0. fold P in H0.
    unfold dS' at 2. rewrite H0. ring.
Qed.

(** In both directions ALiBi is no bias on the keys: with three keys and equal scores, no such bias gives the same
    weights, unless the slope is 0. *)
Theorem alibi_in_both_directions slope :
  slope <> 0 ->
  ~ exists b : tensor [3%nat], equal (s := [3%nat; 3%nat])
      (softmax everything (fun i j => 0 - slope * Rabs (INR i - INR j))) (softmax everything (fun i j => b j)).
Proof.
  intros Hslope [b H]. apply Hslope. set (x := exp (- slope)). assert (Hx : 0 < x) by apply exp_pos.
  pose proof (eq_trans (H 0%nat ltac:(lia) 1%nat ltac:(lia)) (eq_sym (H 1%nat ltac:(lia) 1%nat ltac:(lia)))) as H01.
  clear H. unfold softmax, Z, E, everything in H01. simpl in H01.
  replace (Rabs (0 - 0)) with 0 in * by (rewrite Rabs_pos_eq; lra).
  replace (Rabs (0 - 1)) with 1 in * by (rewrite Rabs_minus_sym, Rabs_pos_eq; lra).
  replace (Rabs (0 - (1 + 1))) with 2 in * by (rewrite Rabs_minus_sym, Rabs_pos_eq; lra).
  replace (Rabs (1 - 0)) with 1 in * by (rewrite Rabs_pos_eq; lra).
  replace (Rabs (1 - 1)) with 0 in * by (rewrite Rabs_pos_eq; lra).
  replace (Rabs (1 - (1 + 1))) with 1 in * by (rewrite Rabs_minus_sym, Rabs_pos_eq; lra).
  replace (0 - slope * 0) with 0 in * by ring. rewrite exp_0 in *.
  replace (0 - slope * 1) with (- slope) in * by ring. fold x in H01.
  replace (exp (0 - slope * 2)) with (x * x) in * by (unfold x; rewrite <- exp_plus; f_equal; ring).
  assert (H1 : x * (x + 1 + x) = 1 + x + x * x).
  { apply (Rmult_eq_compat_r (0 + x + 1 + x)) in H01. apply (Rmult_eq_compat_r (0 + 1 + x + x * x)) in H01.
    field_simplify in H01; [|nra|nra]. nra. }
  assert (H2 : exp (- slope) = exp 0) by (rewrite exp_0; fold x; nra). apply exp_inv in H2. lra.
Qed.
