(** * Projections (chapter 4)

    Queries, keys and values are made from one input X by three linear layers, and a fourth takes the output on. *)

From attnbook Require Export head.

(** One array X becomes queries, keys and values, in whatever way: what each of the three sends back to X adds up. *)
Lemma three_paths {s : list nat} {n_q n_k d_k d_v} (M : mask) scale (Q : tensor s -> tensor [n_q; d_k])
    (K : tensor s -> tensor [n_k; d_k]) (V : tensor s -> tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (X dX : tensor s) tQ
      tK tV
    (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := weights M scale (Q X) (K X) B in
  let dS := centered P (dO × (V X)^T) in
  (forall x t tX, x t = X -> moves x t tX ->
    moves (fun u => Q (x u)) t (tQ tX) /\ moves (fun u => K (x u)) t (tK tX) /\ moves (fun u => V (x u)) t (tV tX)) ->
  (forall tX, ⟨scale • (dS × K X), tQ tX⟩ + ⟨scale • (dS^T × Q X), tK tX⟩ + ⟨P^T × dO, tV tX⟩ = ⟨dX, tX⟩) ->
  gradient ℓ (attention M scale (Q X) (K X) (V X) B) dO ->
  gradient (fun X => ℓ (attention M scale (Q X) (K X) (V X) B)) X dX.
Proof.
  intros P dS Hjvp Hadj Hℓ x t tX Hx Ht. destruct (Hjvp x t tX Hx Ht) as [HQ [HK HV]]. rewrite <- Hx in Hℓ.
  eapply derive_eq.
  - exact (attention_derive M (fun _ => scale) (fun u => Q (x u)) (fun u => K (x u)) (fun u => V (x u)) (fun _ => B) t 0
      (tQ tX) (tK tX) (tV tX) zero (derive_const _ _) HQ HK HV (moves_const _ _) ℓ dO Hℓ).
  - cbv beta. rewrite Hx. fold P dS. rewrite <- Hadj, dot_zero. ring.
Qed.

Lemma linear_X_moves {n d p} (x : R -> tensor [n; d]) (W : tensor [d; p]) (b : tensor [p]) t tX :
  moves x t tX -> moves (s := [n; p]) (fun u => linear (x u) W b) t (tX × W).
Proof.
  intros H i Hi j Hj. eapply derive_eq;
    [exact (linear_moves x (fun _ => W) (fun _ => b) t tX zero zero H (moves_const _ _) (moves_const _ _) i Hi j Hj)|].
  unfold matmul, zero. simpl. rewrite (sum_0 d (fun k => x t i k * 0)); [ring|intros; ring].
Qed.

Lemma linear_W_moves {n d p} (X : tensor [n; d]) (w : R -> tensor [d; p]) (b : tensor [p]) t tW :
  moves w t tW -> moves (s := [n; p]) (fun u => linear X (w u) b) t (X × tW).
Proof.
  intros H i Hi j Hj. eapply derive_eq;
    [exact (linear_moves (fun _ => X) w (fun _ => b) t zero tW zero (moves_const _ _) H (moves_const _ _) i Hi j Hj)|].
  unfold matmul, zero. simpl. rewrite (sum_0 d (fun k => 0 * w t k j)); [ring|intros; ring].
Qed.

(** ** The chapter's theorems *)

(** The output's projection Y = O W_O + b_O: the head's output O gets dY W_Oᵀ, the matrix Oᵀ dY, the bias the sum of
    dY's rows. *)
Theorem eq_dW_O n d_v p (O : tensor [n; d_v]) (W_O : tensor [d_v; p]) (b_O : tensor [p]) (ℓ : tensor [n; p] -> R)
    (dY : tensor [n; p]) :
  gradient ℓ (linear O W_O b_O) dY ->
  gradient (fun W_O => ℓ (linear O W_O b_O)) W_O (O^T × dY) /\
  gradient (fun b_O => ℓ (linear O W_O b_O)) b_O (fun l => ∑ i < n, dY i l) /\
  gradient (fun O => ℓ (linear O W_O b_O)) O (dY × W_O^T).
Proof. intro H. destruct (eq_linear_vjp n d_v p O W_O b_O ℓ dY H) as [HX [HW Hb]]. auto. Qed.

(** From the head's output to the three projections: each weight gets Xᵀ times the gradient of what it made, each bias
    that gradient's rows, added up. *)
Theorem eq_dW n d d_k d_v (M : mask) scale (X : tensor [n; d]) (W_Q W_K : tensor [d; d_k]) (W_V : tensor [d; d_v])
    (b_Q b_K : tensor [d_k]) (b_V : tensor [d_v]) (B : tensor [n; n]) (ℓ : tensor [n; d_v] -> R)
    (dO : tensor [n; d_v]) :
  let Q := linear X W_Q b_Q in
  let K := linear X W_K b_K in
  let V := linear X W_V b_V in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n; n] := fun i j => P i j * (dP i j - ∑ k < n, P i k * dP i k) in
  let dQ := scale • (dS × K) in
  let dK := scale • (dS^T × Q) in
  let dV := P^T × dO in
  gradient ℓ (attention M scale Q K V B) dO ->
  (gradient (fun W_Q => ℓ (attention M scale (linear X W_Q b_Q) K V B)) W_Q (X^T × dQ) /\
   gradient (fun b_Q => ℓ (attention M scale (linear X W_Q b_Q) K V B)) b_Q (fun l => ∑ i < n, dQ i l)) /\
  (gradient (fun W_K => ℓ (attention M scale Q (linear X W_K b_K) V B)) W_K (X^T × dK) /\
   gradient (fun b_K => ℓ (attention M scale Q (linear X W_K b_K) V B)) b_K (fun l => ∑ j < n, dK j l)) /\
  (gradient (fun W_V => ℓ (attention M scale Q K (linear X W_V b_V) B)) W_V (X^T × dV) /\
   gradient (fun b_V => ℓ (attention M scale Q K (linear X W_V b_V) B)) b_V (fun l => ∑ j < n, dV j l)).
Proof.
  intros Q K V P dP dS dQ dK dV H. split; [|split].
  - exact (proj2 (eq_linear_vjp n d d_k X W_Q b_Q (fun Q => ℓ (attention M scale Q K V B)) dQ
      (gradient_Q M scale Q K V B ℓ dO H))).
  - exact (proj2 (eq_linear_vjp n d d_k X W_K b_K (fun K => ℓ (attention M scale Q K V B)) dK
      (gradient_K M scale Q K V B ℓ dO H))).
  - exact (proj2 (eq_linear_vjp n d d_v X W_V b_V (fun V => ℓ (attention M scale Q K V B)) dV
      (gradient_V M scale Q K V B ℓ dO H))).
Qed.

(** X is used three times, and gets the sum of three paths: as query, as key and as value. *)
Theorem eq_dX n d d_k d_v (M : mask) scale (X : tensor [n; d]) (W_Q W_K : tensor [d; d_k]) (W_V : tensor [d; d_v])
    (b_Q b_K : tensor [d_k]) (b_V : tensor [d_v]) (B : tensor [n; n]) (ℓ : tensor [n; d_v] -> R)
    (dO : tensor [n; d_v]) :
  let Q := linear X W_Q b_Q in
  let K := linear X W_K b_K in
  let V := linear X W_V b_V in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n; n] := fun i j => P i j * (dP i j - ∑ k < n, P i k * dP i k) in
  let dQ := scale • (dS × K) in
  let dK := scale • (dS^T × Q) in
  let dV := P^T × dO in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun X => ℓ (attention M scale (linear X W_Q b_Q) (linear X W_K b_K) (linear X W_V b_V) B)) X
    (dQ × W_Q^T ⊕ dK × W_K^T ⊕ dV × W_V^T).
Proof.
  intros Q K V P dP dS dQ dK dV.
  apply (three_paths M scale (fun X => linear X W_Q b_Q) (fun X => linear X W_K b_K) (fun X => linear X W_V b_V) B X
    (dQ × W_Q^T ⊕ dK × W_K^T ⊕ dV × W_V^T) (fun tX => tX × W_Q) (fun tX => tX × W_K) (fun tX => tX × W_V) ℓ dO).
  - intros x t tX _ Ht. split; [|split]; now apply linear_X_moves.
  - intro tX. cbv beta. fold Q K V. rewrite !dot_add_l, !(dot_matmul_r _ tX). reflexivity.
Qed.

(** A batch shares the weights: their gradients are sums over the batch. *)
Theorem eq_dW_batch n_b n d d_k (X : tensor [n_b; n; d]) (W_Q : tensor [d; d_k]) (b_Q : tensor [d_k])
    (ℓ : tensor [n_b; n; d_k] -> R) (dQ : tensor [n_b; n; d_k]) :
  let Q := fun W_Q b_Q => (fun b => linear (n := n) (X b) W_Q b_Q) : tensor [n_b; n; d_k] in
  gradient ℓ (Q W_Q b_Q) dQ ->
  gradient (fun W_Q => ℓ (Q W_Q b_Q)) W_Q (fun k l => ∑ b < n_b, ∑ i < n, X b i k * dQ b i l) /\
  gradient (fun b_Q => ℓ (Q W_Q b_Q)) b_Q (fun l => ∑ b < n_b, ∑ i < n, dQ b i l).
Proof.
  intros Q H. split; intros x t tx Hx Ht.
  - eapply derive_eq; [apply (H (fun u => Q (x u) b_Q) t (fun b => (X b : tensor [n; d]) × tx)); [now rewrite Hx|]|].
    + intros b Hb. exact (linear_W_moves (X b : tensor [n; d]) x b_Q t tx Ht).
    + transitivity (∑ b < n_b, ⟨(X b : tensor [n; d])^T × (dQ b : tensor [n; d_k]), tx⟩);
        [apply sum_ext; intros; apply (dot_matmul_l (dQ i : tensor [n; d_k]) (X i : tensor [n; d]))|].
      simpl. rewrite sum_swap. apply sum_ext; intros k _. rewrite sum_swap. apply sum_ext; intros l _.
      now rewrite sum_r.
  - eapply derive_eq; [apply (H (fun u => Q W_Q (x u)) t (fun b i l => tx l)); [now rewrite Hx|]|].
    + intros b Hb i Hi l Hl. eapply derive_eq; [apply derive_plus; [apply derive_const|now apply Ht]|cbv beta; ring].
    + transitivity (∑ b < n_b, ⟨colsum (dQ b : tensor [n; d_k]), tx⟩);
        [apply sum_ext; intros; apply (dot_rows (dQ i : tensor [n; d_k]))|].
      simpl. rewrite sum_swap. apply sum_ext; intros l _. now rewrite sum_r.
Qed.

(** The bias of the keys gets no gradient, for every mask; that of the values the sum of dO's rows, if no row is
    dead. *)
Theorem eq_db_K n_q n_k d d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (X : tensor [n_k; d]) (W_K : tensor [d; d_k])
    (b_K : tensor [d_k]) (W_V : tensor [d; d_v]) (b_V : tensor [d_v]) (B : tensor [n_q; n_k])
    (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let K := linear X W_K b_K in
  let V := linear X W_V b_V in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun b_K => ℓ (attention M scale Q (linear X W_K b_K) V B)) b_K (fun l => 0) /\
  (forall l, scale * (∑ i < n_q, (∑ j < n_k, dS i j) * Q i l) = 0) /\
  ((forall i, (i < n_q)%nat -> live M n_k i) ->
    gradient (fun b_V => ℓ (attention M scale Q K (linear X W_V b_V) B)) b_V (fun l => ∑ i < n_q, dO i l)).
Proof.
  intros K V P dP dS H. destruct (eq_oracles n_q n_k d_k d_v M scale Q K V B dO) as [Hr [HK [HV _]]].
  split; [|split].
  - apply (gradient_ext _ _ (colsum (scale • (dS^T × Q)))); [intros l _; apply HK|].
    exact (proj2 (proj2 (eq_linear_vjp n_k d d_k X W_K b_K (fun K => ℓ (attention M scale Q K V B)) _
      (gradient_K M scale Q K V B ℓ dO H)))).
  - intro l. rewrite sum_0; [ring|]. intros i _. fold P dP in Hr. unfold dS. rewrite Hr. ring.
  - intro HL. apply (gradient_ext _ _ (colsum (P^T × dO))); [intros l _; now apply HV|].
    exact (proj2 (proj2 (eq_linear_vjp n_k d d_v X W_V b_V (fun V => ℓ (attention M scale Q K V B)) _
      (gradient_V M scale Q K V B ℓ dO H)))).
Qed.

(** Another bias of the keys, the same output. *)
Theorem key_bias_changes_nothing n_q n_k d d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (X : tensor [n_k; d])
    (W_K : tensor [d; d_k]) (b b' : tensor [d_k]) (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) :
  forall i l, attention M scale Q (linear X W_K b) V B i l = attention M scale Q (linear X W_K b') V B i l.
Proof.
  intros i l. apply sum_ext; intros j Hj. f_equal. unfold weights.
  rewrite <- (eq_softmax_shift n_q n_k M (scores scale Q (linear X W_K b') B)
    (fun i => scale * ∑ l < d_k, Q i l * (b l - b' l))).
  assert (HS : forall i j, scores scale Q (linear X W_K b) B i j =
      scores scale Q (linear X W_K b') B i j + scale * ∑ l < d_k, Q i l * (b l - b' l)).
  { clear. intros i j. unfold scores, linear, add, scaled, transpose. unfold matmul at 1 3.
    set (y := X × W_K). rewrite <- (Rplus_comm (scale * _)), <- Rplus_assoc, <- Rmult_plus_distr_l. f_equal. f_equal.
    rewrite <- sum_plus. apply sum_ext; intros. ring. }
  unfold softmax, Z, E. rewrite HS. f_equal. apply sum_ext; intros k _. now rewrite HS.
Qed.

(** The value's bias meets the row sums of the weights, whatever the weights are: a dead row drops out, a sink takes its
    share. *)
Theorem eq_db_V_rows n_q n_k d d_v (P : tensor [n_q; n_k]) (X : tensor [n_k; d]) (W_V : tensor [d; d_v])
    (b_V : tensor [d_v])
    (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  gradient ℓ (P × linear X W_V b_V) dO ->
  gradient (fun b_V => ℓ (P × linear X W_V b_V)) b_V (fun l => ∑ i < n_q, (∑ j < n_k, P i j) * dO i l).
Proof.
  intro H. apply (gradient_ext _ _ (colsum (P^T × dO))).
  - intros l _. simpl. unfold colsum, matmul, transpose. rewrite sum_swap. apply sum_ext; intros. now rewrite sum_r.
  - exact (proj2 (proj2 (eq_linear_vjp n_k d d_v X W_V b_V (fun V => ℓ (P × V)) _
      (proj2 (eq_matmul_vjp _ _ _ P (linear X W_V b_V) ℓ dO H))))).
Qed.

(** Without biases, the scores use only the product W_QK = W_Q W_Kᵀ. Its gradient, and what its factors get from it. *)
Theorem eq_merged n d d_k scale (X : tensor [n; d]) (W_Q W_K : tensor [d; d_k]) (ℓ : tensor [n; n] -> R)
    (dS : tensor [n; n]) :
  let W_QK := W_Q × W_K^T in
  let dW_QK := scale • (X^T × dS × X) in
  gradient ℓ (scale • (X × W_QK × X^T)) dS ->
  gradient (fun W_QK => ℓ (scale • (X × W_QK × X^T))) W_QK dW_QK /\
  gradient (fun W_Q => ℓ (scale • (X × (W_Q × W_K^T) × X^T))) W_Q (dW_QK × W_K) /\
  gradient (fun W_K => ℓ (scale • (X × (W_Q × W_K^T) × X^T))) W_K (dW_QK^T × W_Q) /\
  equal (scale • (X × W_QK × X^T)) (scale • ((X × W_Q) × (X × W_K)^T)).
Proof.
  intros W_QK dW_QK H.
  assert (HW : gradient (fun W_QK => ℓ (scale • (X × W_QK × X^T))) W_QK dW_QK).
  { pose proof (proj1 (eq_op_scale n n scale (X × W_QK × X^T) ℓ dS) H) as H1.
    pose proof (proj1 (eq_matmul_vjp n d n (X × W_QK) (X^T) (fun Y => ℓ (scale • Y)) _ H1)) as H2.
    pose proof (proj2 (eq_matmul_vjp n d d X W_QK (fun Y => ℓ (scale • (Y × X^T))) _ H2)) as H3.
    refine (gradient_ext _ _ _ _ _ H3). intros k _ l _. simpl. unfold dW_QK, scaled, matmul, transpose.
    rewrite sum_l.
    transitivity (∑ i < n, ∑ j < n, scale * (X i k * dS i j * X j l)).
    { apply sum_ext; intros i _. rewrite sum_l. apply sum_ext; intros. ring. }
    rewrite sum_swap. apply sum_ext; intros j _. rewrite <- sum_l. f_equal. now rewrite sum_r. }
  split; [exact HW|split; [|split]].
  - exact (proj1 (eq_matmul_vjp d d_k d W_Q (W_K^T) (fun W_QK => ℓ (scale • (X × W_QK × X^T))) _ HW)).
  - pose proof (gradient_transpose W_K _ _
      (proj2 (eq_matmul_vjp d d_k d W_Q (W_K^T) (fun W_QK => ℓ (scale • (X × W_QK × X^T))) _ HW))) as H4.
    refine (gradient_ext _ _ _ _ _ H4). apply transpose_matmul.
  - intros i Hi j Hj. change (scale * (X × W_QK × X^T) i j = scale * ((X × W_Q) × (X × W_K)^T) i j). f_equal.
    transitivity ((X × W_Q × W_K^T × X^T) i j).
    + apply sum_ext; intros k Hk. f_equal. symmetry. now apply (matmul_assoc X W_Q (W_K^T)).
    + transitivity ((X × W_Q × (W_K^T × X^T)) i j); [now apply (matmul_assoc (X × W_Q) (W_K^T) (X^T))|].
      apply sum_ext; intros l Hl. f_equal. symmetry. now apply (transpose_matmul X W_K).
Qed.

(** One matrix W makes the queries and the keys: it gets the sum of both gradients. *)
Theorem eq_tied__QK n d d_k d_v (M : mask) scale (X : tensor [n; d]) (W : tensor [d; d_k]) (b_Q b_K : tensor [d_k])
    (V : tensor [n; d_v]) (B : tensor [n; n]) (ℓ : tensor [n; d_v] -> R) (dO : tensor [n; d_v]) :
  let Q := linear X W b_Q in
  let K := linear X W b_K in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n; n] := fun i j => P i j * (dP i j - ∑ k < n, P i k * dP i k) in
  let dQ := scale • (dS × K) in
  let dK := scale • (dS^T × Q) in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun W => ℓ (attention M scale (linear X W b_Q) (linear X W b_K) V B)) W (X^T × (dQ ⊕ dK)).
Proof.
  intros Q K P dP dS dQ dK.
  apply (three_paths M scale (fun W => linear X W b_Q) (fun W => linear X W b_K) (fun W => V) B W
    (X^T × (dQ ⊕ dK)) (fun tW => X × tW) (fun tW => X × tW) (fun tW => zero) ℓ dO).
  - intros x t tW _ Ht. split; [|split]; [now apply linear_W_moves|now apply linear_W_moves|apply moves_const].
  - intro tW. cbv beta. fold Q K. rewrite dot_zero, <- (dot_matmul_l (dQ ⊕ dK)), dot_add_l.
    unfold dQ, dK, dS, P, dP, centered. ring.
Qed.

(** One matrix W makes the keys and the values: it gets the sum of both gradients. *)
Theorem eq_tied__KV n d d_k (M : mask) scale (Q : tensor [n; d_k]) (X : tensor [n; d]) (W : tensor [d; d_k])
    (b_K b_V : tensor [d_k]) (B : tensor [n; n]) (ℓ : tensor [n; d_k] -> R) (dO : tensor [n; d_k]) :
  let K := linear X W b_K in
  let V := linear X W b_V in
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n; n] := fun i j => P i j * (dP i j - ∑ k < n, P i k * dP i k) in
  let dK := scale • (dS^T × Q) in
  let dV := P^T × dO in
  gradient ℓ (attention M scale Q K V B) dO ->
  gradient (fun W => ℓ (attention M scale Q (linear X W b_K) (linear X W b_V) B)) W (X^T × (dK ⊕ dV)).
Proof.
  intros K V P dP dS dK dV.
  apply (three_paths M scale (fun W => Q) (fun W => linear X W b_K) (fun W => linear X W b_V) B W
    (X^T × (dK ⊕ dV)) (fun tW => zero) (fun tW => X × tW) (fun tW => X × tW) ℓ dO).
  - intros x t tW _ Ht. split; [|split]; [apply moves_const|now apply linear_W_moves|now apply linear_W_moves].
  - intro tW. cbv beta. fold K V. rewrite dot_zero, <- (dot_matmul_l (dK ⊕ dV)), dot_add_l.
    unfold dV, dK, dS, P, dP, centered. ring.
Qed.

(** ** When the bias of the keys does get a gradient *)

(** In general: whatever the loss does with the scores, the key's bias meets the row sums of dS. *)
Theorem eq_db_K__rows n_q n_k d d_k scale (Q : tensor [n_q; d_k]) (X : tensor [n_k; d]) (W_K : tensor [d; d_k])
    (b_K : tensor [d_k]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R) (dS : tensor [n_q; n_k]) :
  gradient ℓ (scores scale Q (linear X W_K b_K) B) dS ->
  gradient (fun b_K => ℓ (scores scale Q (linear X W_K b_K) B)) b_K
    (fun l => scale * (∑ i < n_q, (∑ j < n_k, dS i j) * Q i l)).
Proof.
  intro H. destruct (scores_backward scale Q (linear X W_K b_K) B ℓ dS H) as [_ [HK _]].
  pose proof (proj2 (proj2 (eq_linear_vjp n_k d d_k X W_K b_K (fun K => ℓ (scores scale Q K B)) _ HK))) as Hb.
  refine (gradient_ext _ _ _ _ _ Hb). intros l _. simpl.
  unfold scaled. rewrite <- sum_l. f_equal. unfold matmul, transpose. rewrite sum_swap. apply sum_ext; intros i _.
  now rewrite sum_r.
Qed.

(** A loss that also looks at the weights leaves the key's bias without a gradient. *)
Theorem key_bias_with_a_loss_on_the_weights n_q n_k d d_k d_v (M : mask) scale (Q : tensor [n_q; d_k])
    (X : tensor [n_k; d])
    (W_K : tensor [d; d_k]) (b_K : tensor [d_k]) (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k])
    (ℓ : tensor [n_q; d_v] -> tensor [n_q; n_k] -> R) (dO : tensor [n_q; d_v]) (G : tensor [n_q; n_k]) :
  let P := fun b_K => weights M scale Q (linear X W_K b_K) B in
  gradient2 ℓ (P b_K × V) (P b_K) dO G ->
  gradient (fun b_K => ℓ (P b_K × V) (P b_K)) b_K (fun l => 0).
Proof.
  intros P H. set (S := scores scale Q (linear X W_K b_K) B).
  destruct (eq_D_weights n_q n_k d_v M S V ℓ dO G H) as [HP _].
  pose proof (eq_db_K__rows n_q n_k d d_k scale Q X W_K b_K B _ _
    (eq_softmax_vjp n_q n_k M S (fun P => ℓ (P × V) P) _ HP)) as Hb.
  refine (gradient_ext _ _ _ _ _ Hb). intros l _. simpl. rewrite sum_0; [ring|]. intros i _.
  pose proof (centered_rows M S (dO × V^T ⊕ G) i) as H0. unfold centered in H0. rewrite H0. ring.
Qed.

(** A loss that looks at L sees what is common to a row: the key's bias gets scale · Σ dL_i Q_i over the live rows (the
    sum of a row of weights is 1, and 0 where the row is dead). In a dead row L is a constant here (Coq's ln 0 = 0). *)
Theorem key_bias_with_L n_q n_k d d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (X : tensor [n_k; d])
    (W_K : tensor [d; d_k])
    (b_K : tensor [d_k]) (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> tensor [n_q] -> R)
    (dO : tensor [n_q; d_v]) (dL : tensor [n_q]) :
  let K := fun b_K => linear X W_K b_K in
  let P := weights M scale Q (K b_K) B in
  gradient2 ℓ (attention M scale Q (K b_K) V B) (logsumexp M (scores scale Q (K b_K) B)) dO dL ->
  gradient (fun b_K => ℓ (attention M scale Q (K b_K) V B) (logsumexp M (scores scale Q (K b_K) B))) b_K
    (fun l => scale * (∑ i < n_q, dL i * (∑ j < n_k, P i j) * Q i l)).
Proof.
  intros K P H. set (S := scores scale Q (K b_K) B). destruct (eq_dS_L n_q n_k d_v M S V ℓ dO dL H) as [HS _].
  refine (gradient_ext _ _ _ _ _ (eq_db_K__rows n_q n_k d d_k scale Q X W_K b_K B _ _ HS)).
  intros l _. simpl. f_equal. apply sum_ext; intros i _. f_equal.
  change P with (softmax M S).
  transitivity (∑ j < n_k, (centered (softmax M S) (dO × V^T) i j + dL i * softmax M S i j)).
  - apply sum_ext; intros j _. unfold centered. rewrite average_of_products. ring.
  - rewrite sum_plus, <- sum_l, centered_rows. apply Rplus_0_l.
Qed.

(** The smallest case where keys are turned after the bias: one query, two keys, the second turned by half a turn. The
    loss is the output, and the bias, at 0, has the gradient 1. *)
Theorem key_bias_when_keys_turn :
  let Q : tensor [1%nat; 1%nat] := fun i a => 1 in
  let K : tensor [1%nat] -> tensor [2%nat; 1%nat] := fun b j a => if (j =? 0)%nat then b a else - b a in
  let V : tensor [2%nat; 1%nat] := fun j a => if (j =? 0)%nat then 1 else -1 in
  gradient (fun b => attention everything 1 Q (K b) V (zero (s := [1%nat; 2%nat])) 0%nat 0%nat) (fun a => 0)
    (fun a => 1).
Proof.
  intros Q K V.
  assert (HO : forall O : tensor [1%nat; 1%nat], gradient (fun O : tensor [1%nat; 1%nat] => O 0%nat 0%nat) O
    (fun i a => 1)).
  { intros O x t tO _ Ht. eapply derive_eq; [exact (Ht 0%nat ltac:(lia) 0%nat ltac:(lia))|]. simpl.
    now rewrite Rmult_1_l, !Rplus_0_l. }
  apply (backward K (fun a => 0) K (fun K => attention everything 1 Q K V (zero (s := [1%nat; 2%nat])) 0%nat 0%nat)
    (1 • ((centered (weights everything 1 Q (K (fun a => 0)) zero) ((fun i a => 1) × V^T))^T × Q))).
  - intros x t tb _ Ht j Hj a Ha. unfold K. destruct (j =? 0)%nat; [now apply Ht|]. apply (derive_opp (fun u => x u a)).
    now apply Ht.
  - intro tb. simpl. unfold scaled, matmul, transpose, centered, weights, softmax, Z, E, scores, add, scaled, matmul,
      transpose, K, V, Q, everything, zero.
    simpl. replace (1 * (0 + 1 * 0) + 0) with 0 by ring. replace (1 * (0 + 1 * - 0) + 0) with 0 by ring. rewrite exp_0.
    field.
  - exact (gradient_K everything 1 Q (K (fun a => 0)) V zero (fun O => O 0%nat 0%nat) (fun i a => 1) (HO _)).
Qed.

(** ** The whole layer *)

(** From the layer's output Y back to its input X: dO = dY W_Oᵀ, the head's backward, and the three paths. *)
Theorem layer_backward n d d_k d_v p (M : mask) scale (X : tensor [n; d]) (W_Q W_K : tensor [d; d_k])
    (W_V : tensor [d; d_v])
    (W_O : tensor [d_v; p]) (b_Q b_K : tensor [d_k]) (b_V : tensor [d_v]) (b_O : tensor [p]) (B : tensor [n; n])
    (ℓ : tensor [n; p] -> R) (dY : tensor [n; p]) :
  let Y := fun X => linear (attention M scale (linear X W_Q b_Q) (linear X W_K b_K) (linear X W_V b_V) B) W_O b_O in
  let Q := linear X W_Q b_Q in
  let K := linear X W_K b_K in
  let V := linear X W_V b_V in
  let P := weights M scale Q K B in
  let dO := dY × W_O^T in
  let dP := dO × V^T in
  let dS : tensor [n; n] := fun i j => P i j * (dP i j - ∑ k < n, P i k * dP i k) in
  let dQ := scale • (dS × K) in
  let dK := scale • (dS^T × Q) in
  let dV := P^T × dO in
  gradient ℓ (Y X) dY ->
  gradient (fun X => ℓ (Y X)) X (dQ × W_Q^T ⊕ dK × W_K^T ⊕ dV × W_V^T).
Proof.
  intros Y Q K V P dO dP dS dQ dK dV H.
  exact (eq_dX n d d_k d_v M scale X W_Q W_K W_V b_Q b_K b_V B (fun O => ℓ (linear O W_O b_O)) dO
    (proj2 (proj2 (eq_dW_O n d_v p (attention M scale Q K V B) W_O b_O ℓ dY H)))).
Qed.
