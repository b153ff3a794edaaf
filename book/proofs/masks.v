(** * Masks (chapter 6)

    A mask M says which pairs are allowed: [M i j = true] where query i may see key j. To mask is to take the softmax
    over the allowed keys only. All gradients of a head stand as they are; this file says where they are exactly 0. *)

From attnbook Require Export head.

(** ** Masks *)

(** a_i: whether row i has an allowed key among n. *)
Definition has_key (M : mask) (n i : nat) : bool := existsb (M i) (seq 0 n).

Lemma has_key_live M n i : has_key M n i = true <-> live M n i.
Proof.
  unfold has_key, live. rewrite existsb_exists. split; intros [k [Hk HM]]; exists k; rewrite in_seq in *; split; auto;
    lia.
Qed.

Lemma has_key_dead M n i : has_key M n i = false <-> forall k, (k < n)%nat -> M i k = false.
Proof.
  split; intro H.
  - intros k Hk. destruct (M i k) eqn:HM; [|reflexivity].
    assert (has_key M n i = true) by (apply has_key_live; exists k; auto). congruence.
  - destruct (has_key M n i) eqn:HL; [|reflexivity]. apply has_key_live in HL. destruct HL as [k [Hk HM]].
    rewrite (H k Hk) in HM. discriminate.
Qed.

(** Forbidden terms may be left out of a sum, if they are 0. *)
Lemma sum_allowed n (a : nat -> bool) f :
    (forall k, (k < n)%nat -> a k = false -> f k = 0) -> sum n f = ∑ k < n, (if a k then f k else 0).
Proof. intro H. apply sum_ext; intros k Hk. destruct (a k) eqn:HM; auto. Qed.

Lemma weights_forbidden {n_q n_k d_k} M scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (B : tensor [n_q; n_k]) i j :
  M i j = false -> weights M scale Q K B i j = 0.
Proof. apply softmax_forbidden. Qed.

(** ** Weights *)

(** The weights are the softmax over the allowed keys only; a forbidden key has the weight 0. *)
Theorem eq_mask_weights n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j :
  softmax M S i j = if M i j then exp (S i j) / ∑ k < n_k, (if M i k then exp (S i k) else 0) else 0.
Proof. destruct (M i j) eqn:H; [|now apply softmax_forbidden]. unfold softmax, E, Z. now rewrite H. Qed.

(** What softmax makes of scores: with every key allowed, then set to 0 where forbidden, then divided by what is left.
    It is the softmax over the allowed keys. *)
Theorem eq_mask_renormalize n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j :
  let R := fun i j => if M i j then softmax everything S i j else 0 in
  (j < n_k)%nat -> M i j = true ->
  R i j / (∑ k < n_k, R i k) = exp (S i j) / ∑ k < n_k, (if M i k then exp (S i k) else 0).
Proof.
  intros R Hj HM. assert (HZ : 0 < Z everything S i) by now apply (Z_pos everything S i j).
  assert (HA : 0 < ∑ k < n_k, (if M i k then exp (S i k) else 0)) by now apply (Z_pos M S i j).
  replace (∑ k < n_k, R i k) with ((∑ k < n_k, (if M i k then exp (S i k) else 0)) / Z everything S i).
  - unfold R. rewrite HM. unfold softmax, E. simpl. field. lra.
  - rewrite sum_div. apply sum_ext; intros k _. unfold R, softmax, E. simpl.
    destruct (M i k); [reflexivity|unfold Rdiv; ring].
Qed.

(** Let M̃ allow everything in a dead row, take the softmax, and set dead rows to 0 after it: no row of that softmax is
    dead, and the weights are those of the mask M. *)
Theorem eq_mask_safe n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j :
  let a := has_key M n_k in
  let M' := fun i j => M i j || negb (a i) in
  (j < n_k)%nat ->
  live M' n_k i /\ (if a i then 1 else 0) * softmax M' S i j = softmax M S i j.
Proof.
  intros a M' Hj. split.
  - destruct (a i) eqn:Ha.
    + apply has_key_live in Ha. destruct Ha as [k [Hk HM]]. exists k. split; [exact Hk|]. unfold M'. now rewrite HM.
    + exists j. split; [exact Hj|]. unfold M'. rewrite Ha. apply orb_true_r.
  - destruct (a i) eqn:Ha.
    + unfold softmax, E, Z, E, M'. rewrite Ha. simpl.
      rewrite (sum_ext n_k (fun k => if M i k || false then exp (S i k) else 0)
        (fun k => if M i k then exp (S i k) else 0));
        [|intros; now rewrite orb_false_r]. rewrite orb_false_r. ring.
    + rewrite (softmax_forbidden M) by now apply (proj1 (has_key_dead M n_k i) Ha). ring.
Qed.

(** *** The weights made again from L, with infinities *)

Definition where_allowed (M : mask) {n_q n_k} (S : tensor [n_q; n_k]) (i j : nat) : Rbar :=
  if M i j then Finite (S i j) else m_infty.
Definition exp_bar (x : Rbar) : Rbar := match x with Finite x => exp x | p_infty => p_infty | m_infty => 0 end.

(** In a live row, P = exp(where(M, S, −∞) − L): one number L a row is enough, if the mask is applied again. *)
Theorem eq_mask_recompute n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j :
  live M n_k i ->
  Finite (softmax M S i j) = exp_bar (Rbar_minus (where_allowed M S i j) (logsumexp M S i)).
Proof.
  intro H. apply (Z_live M S) in H. unfold where_allowed, softmax, E. destruct (M i j); simpl; f_equal.
  - unfold logsumexp. change (S i j + - ln (Z M S i)) with (S i j - ln (Z M S i)).
    unfold Rminus. rewrite exp_plus, exp_Ropp, exp_ln by exact H. reflexivity.
  - unfold Rdiv. ring.
Qed.

(** With L̃ = L in live rows and +∞ in dead rows, P = exp(where(M, S, −∞) − L̃) is right for every row: a dead row gets
    exp(−∞ − ∞) = 0. *)
Theorem eq_mask_kept_L n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j :
  let L' := fun i => if has_key M n_k i then Finite (logsumexp M S i) else p_infty in
  (j < n_k)%nat ->
  Finite (softmax M S i j) = exp_bar (Rbar_minus (where_allowed M S i j) (L' i)).
Proof.
  intros L' Hj. unfold L'. destruct (has_key M n_k i) eqn:Ha.
  - apply eq_mask_recompute. now apply has_key_live.
  - rewrite softmax_forbidden by now apply (proj1 (has_key_dead M n_k i) Ha).
    unfold where_allowed. now destruct (M i j).
Qed.

(** Who makes the weights again from L and forgets the mask gets weights that sum to more than 1, or to 1 if nothing was
    forbidden. *)
Theorem eq_mask_forgotten n_q n_k (M : mask) (S : tensor [n_q; n_k]) i :
  let L := logsumexp M S in
  live M n_k i ->
  ∑ j < n_k, exp (S i j - L i) = (∑ j < n_k, exp (S i j)) / (∑ k < n_k, (if M i k then exp (S i k) else 0)) /\
  1 <= ∑ j < n_k, exp (S i j - L i).
Proof.
  intros L H. apply (Z_live M S) in H.
  assert (EQ : ∑ j < n_k, exp (S i j - L i) = (∑ j < n_k, exp (S i j)) / Z M S i).
  { rewrite sum_div. apply sum_ext; intros j _. unfold L, logsumexp, Rminus.
    rewrite exp_plus, exp_Ropp, exp_ln by exact H. reflexivity. }
  split; [exact EQ|]. rewrite EQ. apply (Rmult_le_reg_r (Z M S i)); [exact H|].
  replace ((∑ j < n_k, exp (S i j)) / Z M S i * Z M S i) with (∑ j < n_k, exp (S i j)) by (field; lra).
  rewrite Rmult_1_l. apply sum_le; intros j _. unfold E. destruct (M i j); [lra|apply Rlt_le, exp_pos].
Qed.

(** ** Gradients *)

(** The gradient at the scores is P (dP − rowsum(P dP)) with any mask: the mask is in P. *)
Theorem eq_mask_dS n_q n_k (M : mask) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R) (dP : tensor [n_q; n_k]) :
  let P := softmax M S in
  gradient ℓ P dP ->
  gradient (fun S => ℓ (softmax M S)) S (fun i j => P i j * (dP i j - rowsum (P ∘ dP) i)).
Proof. exact (eq_softmax_vjp n_q n_k M S ℓ dP). Qed.

(** dS with the sum over the allowed keys only, and 0 at a forbidden score. *)
Theorem step_mask_dS_short n_q n_k (M : mask) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dP : tensor [n_q; n_k]) :
  let P := softmax M S in
  gradient ℓ P dP ->
  gradient (fun S => ℓ (softmax M S)) S
    (fun i j => if M i j then P i j * (dP i j - ∑ k < n_k, (if M i k then P i k * dP i k else 0)) else 0).
Proof.
  intros P H. refine (gradient_ext _ _ _ _ _ (eq_softmax_vjp n_q n_k M S ℓ dP H)). intros i _ j _. fold P. simpl.
  rewrite (sum_allowed n_k (M i) (fun k => P i k * dP i k)).
  - destruct (M i j) eqn:HM; [reflexivity|]. unfold P. rewrite softmax_forbidden by exact HM. ring.
  - intros k _ HM. unfold P. rewrite softmax_forbidden by exact HM. ring.
Qed.

(** dQ, dK and dV are sums over the allowed pairs. *)
Theorem eq_mask_gradients n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q
    (fun i c => scale * ∑ j < n_k, (if M i j then dS i j * K j c else 0)) /\
  gradient (fun K => ℓ (attention M scale Q K V B)) K
    (fun j c => scale * ∑ i < n_q, (if M i j then dS i j * Q i c else 0)) /\
  gradient (fun V => ℓ (attention M scale Q K V B)) V (fun j l => ∑ i < n_q, (if M i j then P i j * dO i l else 0)).
Proof.
  intros P dP dS H.
  assert (P0 : forall i j, M i j = false -> P i j = 0) by (intros i j; apply weights_forbidden).
  assert (S0 : forall i j, M i j = false -> dS i j = 0) by (intros i j HM; unfold dS; rewrite (P0 _ _ HM); ring).
  split; [|split].
  - refine (gradient_ext _ _ _ _ _ (gradient_Q M scale Q K V B ℓ dO H)). intros i _ c _. unfold scaled, matmul.
    simpl. f_equal. refine (sum_allowed n_k (M i) (fun j => dS i j * K j c) _). intros j _ HM. rewrite (S0 _ _ HM).
    ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_K M scale Q K V B ℓ dO H)).
    intros j _ c _. unfold scaled, matmul, transpose.
    simpl. f_equal. refine (sum_allowed n_q (fun i => M i j) (fun i => dS i j * Q i c) _). intros i _ HM.
    rewrite (S0 _ _ HM). ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_V M scale Q K V B ℓ dO H)). intros j _ l _. unfold matmul, transpose.
    refine (sum_allowed n_q (fun i => M i j) (fun i => P i j * dO i l) _). intros i _ HM. rewrite (P0 _ _ HM). ring.
Qed.

(** A pair that is forbidden has the entry 0 in dS, and a key that nobody may see has rows of 0 in dK and dV: exactly
    0. *)
Theorem a_forbidden_key_gets_zero n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (B : tensor [n_q; n_k]) (dP : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) j :
  let P := weights M scale Q K B in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i, M i j = false -> dS i j = 0) /\
  ((forall i, (i < n_q)%nat -> M i j = false) ->
    (forall c, (scale • (dS^T × Q)) j c = 0) /\ (forall l, (P^T × dO) j l = 0)).
Proof.
  intros P dS.
  assert (P0 : forall i, M i j = false -> P i j = 0) by (intro i; apply weights_forbidden).
  split; [intros i HM; unfold dS; rewrite (P0 i HM); ring|].
  intro H. split; intro c; unfold scaled, matmul, transpose; rewrite sum_0; try ring; intros i Hi; unfold dS;
    rewrite P0 by auto; ring.
Qed.

(** A query with a single allowed key gives it the weight 1, and its row of dS is 0. *)
Theorem one_allowed_key n_q n_k (M : mask) (S dP : tensor [n_q; n_k]) i k :
  let P := softmax M S in
  (k < n_k)%nat -> M i k = true -> (forall j, (j < n_k)%nat -> j <> k -> M i j = false) ->
  P i k = 1 /\ forall j, (j < n_k)%nat -> P i j * (dP i j - rowsum (P ∘ dP) i) = 0.
Proof.
  intros P Hk HM H.
  assert (P0 : forall j, (j < n_k)%nat -> j <> k -> P i j = 0) by (intros; apply softmax_forbidden; auto).
  assert (P1 : P i k = 1).
  { rewrite <- (softmax_sum M S i) by (exists k; auto). symmetry. exact (sum_one n_k k (P i) Hk P0). }
  split; [exact P1|]. intros j Hj. unfold rowsum, hadamard.
  rewrite (sum_one n_k k (fun l => P i l * dP i l) Hk) by (intros; rewrite P0 by auto; ring).
  destruct (Nat.eq_dec j k) as [->|Hne]; [rewrite P1; ring|rewrite P0 by auto; ring].
Qed.

(** ** Causality *)

(** How one entry of the output moves with the values and the keys. Both have the factor P_ij: where the weight is 0,
    nothing goes either way. *)
Theorem eq_mask_influence n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) i l :
  let P := weights M scale Q K B in
  let O := attention M scale Q K V B in
  (i < n_q)%nat -> (l < d_v)%nat ->
  gradient (fun V => attention M scale Q K V B i l) V (fun j b => P i j * δ b l) /\
  gradient (fun K => attention M scale Q K V B i l) K (fun j c => scale * (P i j * (V j l - O i l)) * Q i c).
Proof.
  intros P O Hi Hl. set (e := (fun a b => δ i a * δ l b) : tensor [n_q; d_v]).
  assert (He : forall X : tensor [n_q; d_v], ⟨e, X⟩ = X i l).
  { intro X. simpl. unfold e. rewrite <- (sum_δ n_q i (fun a => X a l) Hi). apply sum_ext; intros a _.
    rewrite <- (sum_δ d_v l (X a) Hl), sum_l. apply sum_ext; intros; ring. }
  assert (H : gradient (s := [n_q; d_v]) (fun O => O i l) O e) by (intros x t tX _ Hx; rewrite He; now apply Hx).
  split.
  - refine (gradient_ext _ _ _ _ _ (gradient_V M scale Q K V B (fun O => O i l) e H)). intros j _ b _. fold P.
    unfold matmul, transpose, e. rewrite <- (sum_δ n_q i (fun a => P a j * δ b l) Hi). apply sum_ext; intros a _.
    rewrite (δ_comm l b). ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_K M scale Q K V B (fun O => O i l) e H)). intros j _ c _. fold P.
    assert (HP : forall a k, (e × V^T) a k = δ i a * V k l).
    { intros a k. unfold matmul, transpose, e. rewrite <- (sum_δ d_v l (V k) Hl), sum_l. apply sum_ext; intros; ring. }
    unfold scaled, matmul at 1, transpose at 1, centered. simpl.
    rewrite Rmult_assoc. f_equal. rewrite <- (sum_δ n_q i (fun a => P a j * (V j l - O a l) * Q a c) Hi).
    apply sum_ext; intros a _. rewrite HP.
    replace (∑ k < n_k, P a k * (e × V^T) a k) with (δ i a * O a l); [ring|].
    unfold O, attention. unfold matmul at 1. fold P. rewrite sum_l. apply sum_ext; intros k _. rewrite HP. ring.
Qed.

(** What a query may not see does not move its output, however far it moves: if the keys, values and biases of the
    allowed pairs are the same, so is the row of O. *)
Theorem what_is_forbidden_does_not_move_the_output n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k])
    (K K' : tensor [n_k; d_k]) (V V' : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) i :
  (forall j, (j < n_k)%nat -> M i j = true -> (forall c, K j c = K' j c) /\ (forall l, V j l = V' j l)) ->
  forall l, attention M scale Q K V B i l = attention M scale Q K' V' B i l.
Proof.
  intros H l.
  assert (HE : forall j, (j < n_k)%nat -> E M (scores scale Q K B) i j = E M (scores scale Q K' B) i j).
  { intros j Hj. unfold E. destruct (M i j) eqn:HM; [|reflexivity]. destruct (H j Hj HM) as [HK _].
    unfold scores, add, scaled, matmul, transpose. do 3 f_equal. apply sum_ext; intros. now rewrite HK. }
  unfold attention, matmul, weights, softmax. apply sum_ext; intros j Hj.
  replace (Z M (scores scale Q K B) i) with (Z M (scores scale Q K' B) i)
    by (apply sum_ext; intros; symmetry; now apply HE).
  destruct (M i j) eqn:HM.
  - rewrite HE by exact Hj. destruct (H j Hj HM) as [_ HV]. now rewrite HV.
  - rewrite !(E_forbidden M) by exact HM. unfold Rdiv. ring.
Qed.

(** Under a causal mask the future is silent in both directions. Row i of the output stays as it is whatever becomes of
    later keys and values, and they get exactly 0 from it. *)
Theorem no_gradient_from_the_future n_q n_k d_k d_v scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) i l :
  (i < n_q)%nat -> (l < d_v)%nat ->
  (forall (K' : tensor [n_k; d_k]) (V' : tensor [n_k; d_v]),
    (forall j, (j <= i)%nat -> K' j = K j /\ V' j = V j) ->
    attention causal scale Q K' V' B i l = attention causal scale Q K V B i l) /\
  exists (dK : tensor [n_k; d_k]) (dV : tensor [n_k; d_v]),
    gradient (fun K => attention causal scale Q K V B i l) K dK /\
    gradient (fun V => attention causal scale Q K V B i l) V dV /\
    forall j, (i < j)%nat -> (forall c, dK j c = 0) /\ (forall b, dV j b = 0).
Proof.
  intros Hi Hl. split.
  - intros K' V' H. apply what_is_forbidden_does_not_move_the_output. intros j _ HM. apply Nat.leb_le in HM.
    destruct (H j HM) as [-> ->]. auto.
  - destruct (eq_mask_influence n_q n_k d_k d_v causal scale Q K V B i l Hi Hl) as [HV HK].
    eexists _, _. split; [exact HK|]. split; [exact HV|]. intros j Hj. cbv beta.
    rewrite weights_forbidden by now apply Nat.leb_gt. split; intro; ring.
Qed.

(** Under a causal mask, a loss that looks at no query from j on sends exactly nothing to key j and value j. *)
Theorem a_key_learns_from_no_earlier_query n_q n_k d_k d_v scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) j :
  let P := weights causal scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i l, (j <= i)%nat -> dO i l = 0) ->
  (forall c, (scale • (dS^T × Q)) j c = 0) /\ (forall l, (P^T × dO) j l = 0).
Proof.
  intros P dP dS H.
  assert (HP : forall i k, (j <= i)%nat -> dP i k = 0) by (intros; apply sum_0; intros; rewrite H by assumption; ring).
  assert (H0 : forall i, P i j = 0 \/ (j <= i)%nat).
  { intro i. destruct (le_lt_dec j i); [now right|left]. apply weights_forbidden. now apply Nat.leb_gt. }
  split; intro c; unfold scaled, matmul, transpose; rewrite sum_0; try ring; intros i _.
  - unfold dS. destruct (H0 i) as [-> | Hj]; [ring|]. rewrite (HP i j Hj), sum_0; [ring|]. intros.
    rewrite HP by exact Hj. ring.
  - destruct (H0 i) as [-> | Hj]; [ring|]. rewrite H by exact Hj. ring.
Qed.

(** With a cache: the newest queries alone, with the mask at the bottom-right corner, get the last rows of what all
    queries get under the causal mask. *)
Theorem eq_mask_cache n_old n_new d_k d_v scale (Q : tensor [(n_old + n_new)%nat; d_k])
    (K : tensor [(n_old + n_new)%nat; d_k])
    (V : tensor [(n_old + n_new)%nat; d_v]) (B : tensor [(n_old + n_new)%nat; (n_old + n_new)%nat]) i l :
  let Q_new := (fun i => Q (n_old + i)%nat) : tensor [n_new; d_k] in
  let B_new := (fun i => B (n_old + i)%nat) : tensor [n_new; (n_old + n_new)%nat] in
  attention (causal_bottom_right n_new (n_old + n_new)) scale Q_new K V B_new i l
    = attention causal scale Q K V B (n_old + i)%nat l.
Proof.
  intros Q_new B_new.
  assert (HM : forall j, causal_bottom_right n_new (n_old + n_new) i j = causal (n_old + i)%nat j).
  { intro j. unfold causal_bottom_right, causal. destruct (Nat.leb_spec (j + n_new) (i + (n_old + n_new))),
      (Nat.leb_spec j (n_old + i)); auto; lia. }
  assert (HE : forall j, E (causal_bottom_right n_new (n_old + n_new)) (scores scale Q_new K B_new) i j
    = E causal (scores scale Q K B) (n_old + i)%nat j).
  { intro j. unfold E. now rewrite HM. }
  unfold attention, matmul, weights, softmax, Z. apply sum_ext; intros j _. rewrite HE. do 2 f_equal.
  apply sum_ext; intros. apply HE.
Qed.

(** ** Dead rows *)

(** The output of a dead row is 0. *)
Theorem def_mask_dead_row n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) i l :
  (forall k, (k < n_k)%nat -> M i k = false) -> attention M scale Q K V B i l = 0.
Proof. intro H. apply sum_0; intros j Hj. rewrite weights_forbidden by auto. ring. Qed.

(** No gradient goes through a dead row, exactly: its dS and dQ are 0, and dK and dV are sums over the live rows, as if
    it were not there. *)
Theorem eq_mask_dead_gradients n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let a := has_key M n_k in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => if a i then P i j * (dP i j - ∑ k < n_k, P i k * dP i k) else 0 in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun B => ℓ (attention M scale Q K V B)) B dS /\
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q (fun i c => if a i then (scale • (dS × K)) i c else 0) /\
  gradient (fun K => ℓ (attention M scale Q K V B)) K
    (fun j c => scale * ∑ i < n_q, (if a i then dS i j * Q i c else 0)) /\
  gradient (fun V => ℓ (attention M scale Q K V B)) V (fun j l => ∑ i < n_q, (if a i then P i j * dO i l else 0)).
Proof.
  intros a P dP dS H.
  assert (P0 : forall i j, (j < n_k)%nat -> a i = false -> P i j = 0).
  { intros i j Hj Ha. apply weights_forbidden. now apply (proj1 (has_key_dead M n_k i) Ha). }
  assert (HS : forall i j, (j < n_k)%nat -> centered P dP i j = dS i j).
  { intros i j Hj. unfold centered, dS. destruct (a i) eqn:Ha; [reflexivity|]. rewrite (P0 i j Hj Ha). ring. }
  assert (S0 : forall i j, a i = false -> dS i j = 0) by (intros i j Ha; unfold dS; now rewrite Ha).
  split; [|split; [|split]].
  - refine (gradient_ext _ _ _ _ _ (gradient_B M scale Q K V B ℓ dO H)). intros i _ j Hj. exact (HS i j Hj).
  - refine (gradient_ext _ _ _ _ _ (gradient_Q M scale Q K V B ℓ dO H)). intros i _ c _. unfold scaled, matmul. simpl.
    rewrite (sum_ext n_k _ (fun j => dS i j * K j c)) by (intros j Hj; f_equal; exact (HS i j Hj)).
    destruct (a i) eqn:Ha; [reflexivity|]. rewrite sum_0; [ring|]. intros. rewrite S0 by exact Ha. ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_K M scale Q K V B ℓ dO H)).
    intros j Hj c _. unfold scaled, matmul, transpose. simpl.
    f_equal. rewrite (sum_ext n_q _ (fun i => dS i j * Q i c)) by (intros i _; f_equal; exact (HS i j Hj)).
    refine (sum_allowed n_q a (fun i => dS i j * Q i c) _). intros i _ Ha. rewrite S0 by exact Ha. ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_V M scale Q K V B ℓ dO H)). intros j Hj l _. unfold matmul, transpose.
    refine (sum_allowed n_q a (fun i => P i j * dO i l) _). intros i _ Ha. rewrite (P0 i j Hj Ha). ring.
Qed.

(** ** Padding, packed documents *)

(** A sum that has terms in the first b of n places only. *)
(** A sequence of n_b keys, padded to n_k with anything: the outputs and dQ are those of the sequence alone, and so are
    the first n_b rows of dK and dV; the padding gets exactly 0. *)
Theorem eq_mask_padding n_q n_b n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (K_b : tensor [n_b; d_k]) (V_b : tensor [n_b; d_v])
    (B_b : tensor [n_q; n_b]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let padded := fun i j => M i j && (j <? n_b) in
  let P := weights M scale Q K_b B_b in
  let dP := dO × V_b^T in
  let dS : tensor [n_q; n_b] := fun i j => P i j * (dP i j - ∑ k < n_b, P i k * dP i k) in
  (n_b <= n_k)%nat -> equal (s := [n_b; d_k]) K K_b -> equal (s := [n_b; d_v]) V V_b -> equal (s := [n_q; n_b]) B B_b ->
  equal (attention padded scale Q K V B) (attention M scale Q K_b V_b B_b) /\
  (gradient ℓ (attention padded scale Q K V B) dO ->
    gradient (fun Q => ℓ (attention padded scale Q K V B)) Q (scale • (dS × K_b)) /\
    gradient (fun K => ℓ (attention padded scale Q K V B)) K
      (fun j c => if j <? n_b then (scale • (dS^T × Q)) j c else 0) /\
    gradient (fun V => ℓ (attention padded scale Q K V B)) V (fun j l => if j <? n_b then (P^T × dO) j l else 0)).
Proof.
  intros padded P dP dS Hn HK HV HB. simpl in HK, HV, HB. set (PP := weights padded scale Q K B).
  assert (HE : forall i j, (i < n_q)%nat -> (j < n_b)%nat -> E padded (scores scale Q K B) i j
    = E M (scores scale Q K_b B_b) i j).
  { intros i j Hi Hj. unfold E, padded. rewrite (proj2 (Nat.ltb_lt j n_b) Hj), andb_true_r.
    destruct (M i j); [|reflexivity].
    unfold scores, add, scaled, matmul, transpose. rewrite HB by assumption. do 3 f_equal.
    apply sum_ext; intros c Hc. now rewrite HK. }
  assert (far : forall i j, (n_b <= j)%nat -> padded i j = false).
  { intros i j Hj. unfold padded. rewrite (proj2 (Nat.ltb_ge j n_b) Hj). apply andb_false_r. }
  assert (HZ : forall i, (i < n_q)%nat -> Z padded (scores scale Q K B) i = Z M (scores scale Q K_b B_b) i).
  { intros i Hi. unfold Z. rewrite (sum_first n_b n_k) by (auto; intros; apply E_forbidden; auto).
    apply sum_ext; intros. now apply HE. }
  assert (HP : forall i j, (i < n_q)%nat -> (j < n_b)%nat -> PP i j = P i j).
  { intros i j Hi Hj. unfold PP, P, weights, softmax. rewrite HE, HZ by assumption. reflexivity. }
  assert (P0 : forall i j, (n_b <= j)%nat -> PP i j = 0) by (intros; apply weights_forbidden; auto).
  assert (HdP : forall i j, (j < n_b)%nat -> (dO × V^T) i j = dP i j).
  { intros i j Hj. unfold dP, matmul, transpose. apply sum_ext; intros l Hl. now rewrite HV. }
  assert (HS : forall i j, (i < n_q)%nat -> (j < n_b)%nat -> centered PP (dO × V^T) i j = dS i j).
  { intros i j Hi Hj. unfold centered, dS. rewrite HP, HdP by assumption. do 2 f_equal.
    rewrite (sum_first n_b n_k) by (auto; intros; rewrite P0 by assumption; ring).
    apply sum_ext; intros k Hk. now rewrite HP, HdP by assumption. }
  assert (S0 : forall i j, (n_b <= j)%nat -> centered PP (dO × V^T) i j = 0).
  { intros i j Hj. unfold centered. rewrite P0 by assumption. ring. }
  split; [|intro H; split; [|split]].
  - intros i Hi l Hl. simpl. unfold attention, matmul. fold PP P.
    rewrite (sum_first n_b n_k) by (auto; intros; rewrite P0 by assumption; ring).
    apply sum_ext; intros j Hj. now rewrite HP, HV by assumption.
  - refine (gradient_ext _ _ _ _ _ (gradient_Q padded scale Q K V B ℓ dO H)). intros i Hi c Hc. fold PP.
    unfold scaled, matmul at 1 3.
    simpl. f_equal. rewrite (sum_first n_b n_k) by (auto; intros; rewrite S0 by assumption; ring).
    apply sum_ext; intros j Hj. now rewrite HS, HK by assumption.
  - refine (gradient_ext _ _ _ _ _ (gradient_K padded scale Q K V B ℓ dO H)). intros j _ c _. fold PP.
    unfold scaled, matmul at 1 3, transpose at 1 3.
    simpl. destruct (Nat.ltb_spec j n_b) as [Hj|Hj].
    + f_equal. apply sum_ext; intros i Hi. now rewrite HS by assumption.
    + rewrite sum_0; [ring|]. intros. rewrite S0 by assumption. ring.
  - refine (gradient_ext _ _ _ _ _ (gradient_V padded scale Q K V B ℓ dO H)). intros j _ l _. fold PP.
    unfold matmul, transpose.
    destruct (Nat.ltb_spec j n_b) as [Hj|Hj].
    + apply sum_ext; intros i Hi. now rewrite HP by assumption.
    + apply sum_0; intros. rewrite P0 by assumption. ring.
Qed.

(** One array above another. *)
Definition stack {m n p} (A : tensor [m; p]) (B : tensor [n; p]) : tensor [(m + n)%nat; p] :=
  fun i => if i <? m then A i else B (i - m)%nat.

Lemma stack_1 {m n p} (A : tensor [m; p]) (B : tensor [n; p]) i : (i < m)%nat -> stack A B i = A i.
Proof. intro H. unfold stack. now rewrite (proj2 (Nat.ltb_lt i m) H). Qed.

Lemma stack_2 {m n p} (A : tensor [m; p]) (B : tensor [n; p]) i : stack A B (m + i)%nat = B i.
Proof.
  unfold stack. rewrite (proj2 (Nat.ltb_ge (m + i) m)) by lia. f_equal. lia.
Qed.

Lemma equal_stack {m n p} (A : tensor [(m + n)%nat; p]) (B : tensor [m; p]) (C : tensor [n; p]) :
    (forall i c, (i < m)%nat -> A i c = B i c) -> (forall i c, (i < n)%nat -> A (m + i)%nat c = C i c) -> equal A
    (stack B C).
Proof.
  intros H1 H2 i Hi c _. unfold stack. simpl. destruct (Nat.ltb_spec i m); [auto|].
  replace i with (m + (i - m))%nat at 1 by lia. apply H2. lia.
Qed.

(** Two documents in one sequence, kept apart by the mask [doc_i = doc_j ∧ j ≤ i]: the gradients are those of the
    documents alone, one above the other. *)
Theorem eq_mask_packed m n d_k d_v scale (Q1 K1 : tensor [m; d_k]) (Q2 K2 : tensor [n; d_k]) (V1 : tensor [m; d_v])
    (V2 : tensor [n; d_v]) (ℓ : tensor [(m + n)%nat; d_v] -> R) (dO1 : tensor [m; d_v]) (dO2 : tensor [n; d_v]) :
  let doc := fun i => if i <? m then 1%nat else 2%nat in
  let M := fun i j => (doc i =? doc j) && (j <=? i) in
  let Q := stack Q1 Q2 in let K := stack K1 K2 in let V := stack V1 V2 in
  let P1 := weights causal scale Q1 K1 (fun _ _ => 0) in
  let P2 := weights causal scale Q2 K2 (fun _ _ => 0) in
  let dS1 : tensor [m; m] := fun i j => P1 i j * ((dO1 × V1^T) i j - ∑ k < m, P1 i k * (dO1 × V1^T) i k) in
  let dS2 : tensor [n; n] := fun i j => P2 i j * ((dO2 × V2^T) i j - ∑ k < n, P2 i k * (dO2 × V2^T) i k) in
  gradient ℓ (attention M scale Q K V (fun _ _ => 0)) (stack dO1 dO2) ->
  gradient (fun Q => ℓ (attention M scale Q K V (fun _ _ => 0))) Q (stack (scale • (dS1 × K1)) (scale • (dS2 × K2))) /\
  gradient (fun K => ℓ (attention M scale Q K V (fun _ _ => 0))) K
    (stack (scale • (dS1^T × Q1)) (scale • (dS2^T × Q2))) /\
  gradient (fun V => ℓ (attention M scale Q K V (fun _ _ => 0))) V (stack (P1^T × dO1) (P2^T × dO2)).
Proof.
  intros doc M Q K V P1 P2 dS1 dS2 H. set (dO := stack dO1 dO2) in *.
  set (P := weights (n_q := (m + n)%nat) (n_k := (m + n)%nat) M scale Q K (fun _ _ => 0)).
  assert (doc1 : forall i, (i < m)%nat -> doc i = 1%nat)
    by (intros i Hi; unfold doc; now rewrite (proj2 (Nat.ltb_lt i m) Hi)).
  assert (doc2 : forall i, doc (m + i)%nat = 2%nat) by (intro i; unfold doc;
    now rewrite (proj2 (Nat.ltb_ge (m + i) m)) by lia).
  assert (M11 : forall i j, (i < m)%nat -> (j < m)%nat -> M i j = causal i j)
    by (intros; unfold M; now rewrite !doc1 by assumption).
  assert (M12 : forall i j, (i < m)%nat -> M i (m + j)%nat = false)
    by (intros; unfold M; now rewrite doc1, doc2 by assumption).
  assert (M21 : forall i j, (j < m)%nat -> M (m + i)%nat j = false)
    by (intros; unfold M; now rewrite doc2, doc1 by assumption).
  assert (M22 : forall i j, M (m + i)%nat (m + j)%nat = causal i j).
  { intros. unfold M, causal. rewrite !doc2. simpl. destruct (Nat.leb_spec (m + j) (m + i)), (Nat.leb_spec j i); auto;
      lia. }
  assert (P12 : forall i j, (i < m)%nat -> P i (m + j)%nat = 0) by (intros; apply weights_forbidden; auto).
  assert (P21 : forall i j, (j < m)%nat -> P (m + i)%nat j = 0) by (intros; apply weights_forbidden; auto).
  assert (P11 : forall i j, (i < m)%nat -> (j < m)%nat -> P i j = P1 i j).
  { assert (HE : forall i j, (i < m)%nat -> (j < m)%nat
      -> E (n := (m + n)%nat) (m := (m + n)%nat) M (scores scale Q K (fun _ _ => 0)) i j
        = E causal (scores scale Q1 K1 (fun _ _ => 0)) i j).
    { intros i j Hi Hj. unfold E. rewrite M11 by assumption. destruct (causal i j); [|reflexivity].
      unfold scores, add, scaled, matmul, transpose, Q, K. now rewrite !stack_1 by assumption. }
    intros i j Hi Hj. unfold P, P1, weights, softmax. rewrite HE by assumption. f_equal. unfold Z. rewrite sum_add.
    rewrite (sum_0 n) by (intros; apply E_forbidden; auto). rewrite Rplus_0_r. apply sum_ext; intros; auto. }
  assert (P22 : forall i j, P (m + i)%nat (m + j)%nat = P2 i j).
  { assert (HE : forall i j, E (n := (m + n)%nat) (m := (m + n)%nat) M (scores scale Q K (fun _ _ => 0))
      (m + i)%nat (m + j)%nat = E causal (scores scale Q2 K2 (fun _ _ => 0)) i j).
    { intros i j. unfold E. rewrite M22. destruct (causal i j); [|reflexivity].
      unfold scores, add, scaled, matmul, transpose, Q, K. now rewrite !stack_2. }
    intros i j. unfold P, P2, weights, softmax. rewrite HE. f_equal. unfold Z. rewrite sum_add.
    rewrite (sum_0 m) by (intros; apply E_forbidden; auto). rewrite Rplus_0_l. apply sum_ext; intros; auto. }
  set (dS := centered P (dO × V^T)).
  assert (S12 : forall i j, (i < m)%nat -> dS i (m + j)%nat = 0)
    by (intros; unfold dS, centered; rewrite P12 by assumption; ring).
  assert (S21 : forall i j, (j < m)%nat -> dS (m + i)%nat j = 0)
    by (intros; unfold dS, centered; rewrite P21 by assumption; ring).
  assert (S11 : forall i j, (i < m)%nat -> (j < m)%nat -> dS i j = dS1 i j).
  { assert (HdP : forall i j, (i < m)%nat -> (j < m)%nat -> (dO × V^T) i j = (dO1 × V1^T) i j).
    { intros i j Hi Hj. unfold matmul, transpose, dO, V. now rewrite !stack_1 by assumption. }
    intros i j Hi Hj. unfold dS, dS1, centered. rewrite sum_add, (sum_0 n) by (intros; rewrite P12 by assumption; ring).
    rewrite HdP, P11, Rplus_0_r by assumption. do 2 f_equal. apply sum_ext; intros.
    now rewrite P11, HdP by assumption. }
  assert (S22 : forall i j, dS (m + i)%nat (m + j)%nat = dS2 i j).
  { assert (HdP : forall i j, (dO × V^T) (m + i)%nat (m + j)%nat = (dO2 × V2^T) i j).
    { intros i j. unfold matmul, transpose, dO, V. now rewrite !stack_2. }
    intros i j. unfold dS, dS2, centered. rewrite sum_add, (sum_0 m) by (intros; rewrite P21 by assumption; ring).
    rewrite HdP, P22, Rplus_0_l. do 2 f_equal. apply sum_ext; intros. now rewrite P22, HdP. }
  split; [|split].
  - refine (gradient_ext _ _ _ _ _ (gradient_Q (n_q := (m + n)%nat)
      (n_k := (m + n)%nat) M scale Q K V (fun _ _ => 0) ℓ dO H)). fold P dS.
    apply equal_stack; intros i c Hi; unfold scaled, matmul.
    + f_equal. rewrite sum_add, (sum_0 n), Rplus_0_r by (intros; rewrite S12 by exact Hi; ring).
      apply sum_ext; intros j Hj. unfold K. now rewrite S11, stack_1 by assumption.
    + f_equal. rewrite sum_add, (sum_0 m), Rplus_0_l by (intros; rewrite S21 by assumption; ring).
      apply sum_ext; intros j Hj. unfold K. now rewrite S22, stack_2.
  - refine (gradient_ext _ _ _ _ _ (gradient_K (n_q := (m + n)%nat)
      (n_k := (m + n)%nat) M scale Q K V (fun _ _ => 0) ℓ dO H)). fold P dS.
    apply equal_stack; intros j c Hj; unfold scaled, matmul, transpose.
    + f_equal. rewrite sum_add, (sum_0 n), Rplus_0_r by (intros; rewrite S21 by exact Hj; ring).
      apply sum_ext; intros i Hi. unfold Q. now rewrite S11, stack_1 by assumption.
    + f_equal. rewrite sum_add, (sum_0 m), Rplus_0_l by (intros; rewrite S12 by assumption; ring).
      apply sum_ext; intros i Hi. unfold Q. now rewrite S22, stack_2.
  - refine (gradient_ext _ _ _ _ _ (gradient_V (n_q := (m + n)%nat)
      (n_k := (m + n)%nat) M scale Q K V (fun _ _ => 0) ℓ dO H)). fold P.
    apply equal_stack; intros j l Hj; unfold matmul, transpose.
    + rewrite sum_add, (sum_0 n), Rplus_0_r by (intros; rewrite P21 by exact Hj; ring).
      apply sum_ext; intros i Hi. unfold dO. now rewrite P11, stack_1 by assumption.
    + rewrite sum_add, (sum_0 m), Rplus_0_l by (intros; rewrite P12 by assumption; ring).
      apply sum_ext; intros i Hi. unfold dO. now rewrite P22, stack_2.
Qed.

(** ** Other ways to forbid *)

(** To give a forbidden key f the score −c in place of −∞: its weight is 1/(1 + e^(c + L_A)), with L_A the log-sum-exp
    of the allowed scores, its gradient is P_f (1 − P_f) (dP_f − D_A), and both tend to 0 as c grows. *)
Theorem eq_mask_limit n_q n_k (M : mask) (S dP : tensor [n_q; n_k]) i f :
  let L_A := logsumexp M S i in
  let D_A := ∑ k < n_k, softmax M S i k * dP i k in
  let M' : mask := fun i j => M i j || (j =? f) in
  let P := fun c => softmax (n := n_k) (m := n_q) M' (fun i j => if j =? f then - c else S i j) in
  let dS := fun c j => P c i j * (dP i j - ∑ k < n_k, P c i k * dP i k) in
  (f < n_k)%nat -> live M n_k i -> M i f = false ->
  (forall c, P c i f = 1 / (1 + exp (c + L_A)) /\ dS c f = P c i f * (1 - P c i f) * (dP i f - D_A)) /\
  is_lim (fun c => P c i f) p_infty 0 /\ is_lim (fun c => dS c f) p_infty 0.
Proof.
  intros L_A D_A M' P dS Hf HL HM. pose proof (Z_live M S i HL) as HZ.
  assert (HE : forall c k, E (n := n_k) (m := n_q) M' (fun i j => if j =? f then - c else S i j) i k
    = δ f k * exp (- c) + E M S i k).
  { intros c k. unfold E, M', δ. rewrite (Nat.eqb_sym f k). destruct (Nat.eqb_spec k f) as [->|].
    - rewrite orb_true_r, HM. ring.
    - rewrite orb_false_r. destruct (M i k); ring. }
  assert (HZ' : forall c, Z (n := n_k) (m := n_q) M' (fun i j => if j =? f then - c else S i j) i
    = exp (- c) + Z M S i).
  { intro c. transitivity (∑ k < n_k, (δ f k * exp (- c) + E M S i k)); [apply sum_ext; intros; apply HE|].
    rewrite sum_plus. f_equal.
    exact (sum_δ n_k f (fun _ => exp (- c)) Hf). }
  assert (pos : forall c, 0 < exp (- c) + Z M S i) by (intro c; pose proof (exp_pos (- c)); lra).
  assert (HP : forall c, P c i f = exp (- c) / (exp (- c) + Z M S i)).
  { intro c. unfold P, softmax. rewrite HE, HZ', δ_same, E_forbidden by exact HM. f_equal. ring. }
  assert (HL' : forall c, exp (c + L_A) = exp c * Z M S i)
    by (intro c; unfold L_A, logsumexp; now rewrite exp_plus, exp_ln by exact HZ).
  assert (HPL : forall c, P c i f = 1 / (1 + exp (c + L_A))).
  { intro c. rewrite HP, HL', exp_Ropp. pose proof (exp_pos c). field. split; [|lra].
    pose proof (Rmult_lt_0_compat _ _ H HZ). lra. }
  assert (HD : forall c, ∑ k < n_k, P c i k * dP i k = P c i f * dP i f + (1 - P c i f) * D_A).
  { intro c. rewrite HP. unfold D_A, P. rewrite !softmax_average.
    rewrite (sum_ext n_k _ (fun k => exp (- c) * (δ f k * dP i k) + E M S i k * dP i k)) by (intros; rewrite HE; ring).
    rewrite sum_plus, <- sum_l, (sum_δ n_k f (dP i)), HZ' by exact Hf. pose proof (pos c). field. split; lra. }
  assert (HdS : forall c, dS c f = P c i f * (1 - P c i f) * (dP i f - D_A)) by (intro c; unfold dS; rewrite HD; ring).
  assert (lim : is_lim (fun c => P c i f) p_infty 0).
  { apply (is_lim_ext (fun c => / (1 + exp (c + L_A)))); [intro c; rewrite HPL; unfold Rdiv; ring|].
    replace (Finite 0) with (Rbar_inv p_infty) by reflexivity. apply is_lim_inv; [|discriminate].
    apply (is_lim_plus (fun _ => 1) (fun c => exp (c + L_A)) p_infty 1 p_infty); [apply is_lim_const| |reflexivity].
    apply (is_lim_ext (fun c => exp c * Z M S i)); [intro; now rewrite HL'|].
    refine (eq_ind _ (is_lim _ _) (is_lim_scal_r _ (Z M S i) _ _ is_lim_exp_p) _ _).
    simpl. destruct (Rle_dec 0 (Z M S i)) as [h|h]; [|lra].
    destruct (Rle_lt_or_eq_dec 0 (Z M S i) h); [reflexivity|lra]. }
  split; [auto|]. split; [exact lim|].
  apply (is_lim_ext (fun c => P c i f * ((1 - P c i f) * (dP i f - D_A)))); [intro; rewrite HdS; ring|].
  replace (Finite 0) with (Rbar_mult 0 ((1 - 0) * (dP i f - D_A))) by (simpl; f_equal; ring).
  apply (is_lim_mult _ _ _ 0 ((1 - 0) * (dP i f - D_A)) lim); [|exact I].
  refine (eq_ind _ (is_lim _ _) (is_lim_scal_r _ (dP i f - D_A) _ _
    (is_lim_minus' _ _ _ _ _ (is_lim_const 1 p_infty) lim)) _ _). reflexivity.
Qed.

(** Masked after the softmax and not renormalized, a forbidden score leaks: O' = (M ∘ P̂) V moves with it at the rate
    −P̂_ij O'_i. *)
Theorem eq_mask_leak n_q n_k d_v (M : mask) (S : R -> tensor [n_q; n_k]) t (V : tensor [n_k; d_v]) i j l :
  let P := softmax everything (S t) in
  let O' := fun (S : tensor [n_q; n_k]) i l => ∑ k < n_k, (if M i k then softmax everything S i k else 0) * V k l in
  (i < n_q)%nat -> (j < n_k)%nat -> M i j = false ->
  moves S t (fun a b => δ i a * δ j b) ->
  is_derive (fun u => O' (S u) i l) t (∑ k < n_k, (if M i k then - P i j * P i k * V k l else 0)) /\
  is_derive (fun u => O' (S u) i l) t (- P i j * O' (S t) i l).
Proof.
  intros P O' Hi Hj HM Ht.
  assert (EQ : ∑ k < n_k, (if M i k then - P i j * P i k * V k l else 0) = - P i j * O' (S t) i l).
  { unfold O'. rewrite sum_l. apply sum_ext; intros k _. fold P. destruct (M i k); ring. }
  assert (H : is_derive (fun u => O' (S u) i l) t (∑ k < n_k, (if M i k then - P i j * P i k * V k l else 0))).
  { apply (sum_derive n_k (fun k u => (if M i k then softmax everything (S u) i k else 0) * V k l)). intros k Hk.
    destruct (M i k) eqn:HMk.
    - assert (Hne : j <> k) by (intros ->; congruence).
      eapply derive_eq; [apply (derive_mult (fun u => softmax everything (S u) i k));
        [exact (softmax_moves everything S t _ Ht i Hi k Hk)|apply derive_const]|].
      cbv beta. unfold centered. fold P. rewrite (δ_other j k Hne), δ_same.
      rewrite (sum_ext n_k _ (fun a => δ j a * P i a)) by (intros; ring). rewrite (sum_δ n_k j (P i) Hj). ring.
    - apply (is_derive_ext (fun _ => 0)); [intro; symmetry; apply Rmult_0_l|apply derive_const]. }
  split; [exact H|]. rewrite <- EQ. exact H.
Qed.

(** *** Gates *)

(** Multiply by a table of gates G, then renormalize. *)
Definition gated {m n} (G S : tensor [m; n]) : tensor [m; n] :=
  fun i j => G i j * exp (S i j) / ∑ k < n, G i k * exp (S i k).

(** Gates are an additive bias, that of log G, in a row whose gates are all positive. *)
Theorem eq_mask_gate__P n_q n_k (G S : tensor [n_q; n_k]) i j :
  let log_G : tensor [n_q; n_k] := fun i j => ln (G i j) in
  (forall k, (k < n_k)%nat -> 0 < G i k) -> (j < n_k)%nat ->
  softmax everything (S ⊕ log_G) i j = G i j * exp (S i j) / ∑ k < n_k, G i k * exp (S i k).
Proof.
  intros log_G H Hj.
  assert (HE : forall k, (k < n_k)%nat -> exp (S i k + ln (G i k)) = G i k * exp (S i k)).
  { intros k Hk. rewrite exp_plus, exp_ln by auto. ring. }
  unfold softmax, Z, E, add, log_G. simpl. rewrite HE by exact Hj. f_equal. now apply sum_ext.
Qed.

(** The gradient of the gates, open or not: e^S (dP − D) / Z, with Z the sum of the gated row, which is not 0. A gate at
    0 can open again. *)
Theorem a_gate_can_open_again n_q n_k (G S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R) (dP : tensor [n_q; n_k]) :
  let P := gated G S in
  (forall i, (i < n_q)%nat -> (0 < n_k)%nat -> ∑ k < n_k, G i k * exp (S i k) <> 0) ->
  gradient ℓ P dP ->
  gradient (fun G => ℓ (gated G S)) G
    (fun i j => exp (S i j) * (dP i j - rowsum (P ∘ dP) i) / ∑ k < n_k, G i k * exp (S i k)).
Proof.
  intros P HZ. set (z := fun i => ∑ k < n_k, G i k * exp (S i k)).
  apply (backward (fun G => gated G S) G (fun tG i j => exp (S i j) / z i * tG i j - P i j * ∑ k < n_k,
    exp (S i k) / z i * tG i k)).
  - intros x t tG Hx Ht i Hi j Hj.
    assert (Hn : forall k, (k < n_k)%nat -> is_derive (fun u => x u i k * exp (S i k)) t (tG i k * exp (S i k))).
    { intros k Hk. eapply derive_eq; [apply (derive_mult (fun u => x u i k));
        [now apply Ht|apply derive_const]|cbv beta; ring]. }
    eapply derive_eq.
    + apply (derive_div (fun u => x u i j * exp (S i j)) (fun u => ∑ k < n_k, x u i k * exp (S i k)));
        [exact (Hn j Hj)|exact (sum_derive n_k (fun k u => x u i k * exp (S i k)) t _ Hn)|rewrite Hx; apply HZ; lia].
    + rewrite Hx. fold (z i). pose proof (HZ i Hi ltac:(lia)) as H. fold (z i) in H. unfold P, gated. fold (z i).
      replace (∑ k < n_k, exp (S i k) / z i * tG i k) with ((∑ k < n_k, tG i k * exp (S i k)) / z i)
        by (rewrite sum_div; apply sum_ext; intros; unfold Rdiv; ring).
      field. exact H.
  - intro tG. simpl. apply sum_ext; intros i _. unfold rowsum, hadamard. fold (z i).
    set (d := ∑ k < n_k, P i k * dP i k). set (s := ∑ k < n_k, exp (S i k) / z i * tG i k).
    transitivity (∑ j < n_k, (dP i j * (exp (S i j) / z i * tG i j) - s * (P i j * dP i j)));
      [apply sum_ext; intros; ring|].
    transitivity (∑ j < n_k, (dP i j * (exp (S i j) / z i * tG i j) - d * (exp (S i j) / z i * tG i j)));
      [|apply sum_ext; intros; unfold Rdiv; ring].
    rewrite !sum_minus, <- !sum_l. fold d s. ring.
Qed.

(** Where all gates are positive, in every row, the gradient of the gates is dG = dS / G. *)
Theorem eq_mask_gate__dG n_q n_k (G S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R) (dP : tensor [n_q; n_k]) :
  let P := gated G S in
  let dS := fun i j => P i j * (dP i j - rowsum (P ∘ dP) i) in
  (forall i j, (i < n_q)%nat -> (j < n_k)%nat -> 0 < G i j) ->
  gradient ℓ P dP ->
  gradient (fun G => ℓ (gated G S)) G (fun i j => dS i j / G i j).
Proof.
  intros P dS HG H.
  assert (HZ : forall i j, (i < n_q)%nat -> (j < n_k)%nat -> 0 < ∑ k < n_k, G i k * exp (S i k)).
  { intros i j Hi Hj. apply (sum_pos n_k _ j Hj); intros; [apply Rlt_le|]; apply Rmult_lt_0_compat;
      auto using exp_pos. }
  refine (gradient_ext _ _ _ _ _ (a_gate_can_open_again _ _ G S ℓ dP _ H)).
  - intros i Hi j Hj. simpl. unfold dS, P, gated. pose proof (HG i j Hi Hj). pose proof (HZ i j Hi Hj). field.
    split; lra.
  - intros i Hi Hn. apply Rgt_not_eq, (HZ i 0%nat Hi). lia.
Qed.
