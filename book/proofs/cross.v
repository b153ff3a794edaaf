(** * Cross-attention: the memory and the cache (chapter 7)

    The layer is that of heads.v: queries from X, keys and values from the memory. Here is what comes back to the
    memory, from heads, queries, layers and steps, and what a cache keeps or loses. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export heads.

(** ** Lemmas *)

(** When the memory alone moves. *)
Lemma memory_moves {batch n m h d} (x : R -> tensor [batch; n; m]) (W : tensor [m; (h * d)%nat])
    (b : tensor [(h * d)%nat]) t tX :
  moves x t tX ->
  moves (s := [batch; h; n; d]) (fun u s => split (linear (x u).[s] W b)) t (fun s r => tX.[s] × columns W r).
Proof.
  intros H s Hs r Hr i Hi l Hl. unfold split, linear, add, rows, part, columns. eapply derive_eq.
  - apply (derive_plus (fun u => (x u s × W) i (r * d + l)%nat) (fun _ => b (r * d + l)%nat)); [|apply derive_const].
    apply (sum_derive m (fun k u => x u s i k * W k (r * d + l)%nat) t (fun k => tX s i k * W k (r * d + l)%nat)).
    intros k Hk. eapply derive_eq; [apply derive_mult; [exact (H s Hs i Hi k Hk)|apply derive_const]|cbv beta; ring].
  - unfold matmul. ring.
Qed.

(** A packed projection, when all of it moves. *)
Lemma packed_moves {batch n m p} (x : R -> tensor [batch; n; m]) (w : R -> tensor [m; p]) (b : R -> tensor [p]) t tX tW
    tb :
  moves x t tX -> moves w t tW -> moves b t tb ->
  moves (s := [batch; n; p]) (fun u s => linear (x u).[s] (w u) (b u)) t
    (fun s => tlinear (x t).[s] (w t) tX.[s] tW tb).
Proof. intros HX HW Hb s Hs. exact (linear_moves (fun u => (x u).[s]) w b t _ _ _ (HX s Hs) HW Hb). Qed.

Lemma gradient2_each {s r} (ℓ : tensor s -> tensor r -> R) X Y dX dY :
  gradient2 ℓ X Y dX dY -> gradient (fun X => ℓ X Y) X dX /\ gradient (fun Y => ℓ X Y) Y dY.
Proof.
  intro H. split.
  - intros x t tX Hx Ht. eapply derive_eq; [apply (H x (fun _ => Y) t tX zero); auto using moves_const|].
    rewrite dot_zero. ring.
  - intros y t tY Hy Ht. eapply derive_eq; [apply (H (fun _ => X) y t zero tY); auto using moves_const|].
    rewrite dot_zero. ring.
Qed.

(** Copies that are all read: what they get adds up. *)
Lemma dot_copies {b m n} T (A : tensor [T; b; m; n]) (X : tensor [b; m; n]) :
  ∑ t < T, ⟨A.[t], X⟩ = dot (s := [b; m; n]) (fun s j c => ∑ t < T, A t s j c) X.
Proof.
  simpl. rewrite sum_swap. apply sum_ext; intros s _. rewrite sum_swap. apply sum_ext; intros j _.
  rewrite sum_swap. apply sum_ext; intros c _. now rewrite sum_r.
Qed.

Lemma matmul_0_l {m n p} (A : tensor [m; n]) (B : tensor [n; p]) i j : (forall k, (k < n)%nat -> A i k = 0) ->
  (A × B) i j = 0.
Proof. intro H. apply sum_0; intros k Hk. rewrite H by exact Hk. ring. Qed.

Lemma matmul_0_r {m n p} (A : tensor [m; n]) (B : tensor [n; p]) i j : (forall k, (k < n)%nat -> B k j = 0) ->
  (A × B) i j = 0.
Proof. intro H. apply sum_0; intros k Hk. rewrite H by exact Hk. ring. Qed.

Lemma scaled_0 {m n} c (A : tensor [m; n]) i j : A i j = 0 -> (c • A) i j = 0.
Proof. intro H. unfold scaled. rewrite H. ring. Qed.

(** ** The chapter's theorems *)

(** Move the memory and nothing else: the loss has a speed through each key and each value of each head. *)
Theorem step_cross_loss batch n_k d_m h d_k d_v (X_mem : R -> tensor [batch; n_k; d_m]) t
    (tX_mem : tensor [batch; n_k; d_m]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (ℓ : tensor [batch; h; n_k; d_k] -> tensor [batch; h; n_k; d_v] -> R) (dK : tensor [batch; h; n_k; d_k])
    (dV : tensor [batch; h; n_k; d_v]) :
  let K (X_mem : tensor [batch; n_k; d_m]) s := split (X_mem.[s] × W_K ⊕ rows b_K) in
  let V (X_mem : tensor [batch; n_k; d_m]) s := split (X_mem.[s] × W_V ⊕ rows b_V) in
  gradient2 ℓ (K (X_mem t)) (V (X_mem t)) dK dV ->
  moves X_mem t tX_mem ->
  is_derive (fun u => ℓ (K (X_mem u)) (V (X_mem u))) t
    ((∑ s < batch, ∑ r < h, ⟨dK.[s].[r], tX_mem.[s] × columns W_K r⟩) +
     (∑ s < batch, ∑ r < h, ⟨dV.[s].[r], tX_mem.[s] × columns W_V r⟩)).
Proof.
  intros K V H Ht.
  exact (H (fun u => K (X_mem u)) (fun u => V (X_mem u)) t _ _ eq_refl eq_refl (memory_moves X_mem W_K b_K t _ Ht)
    (memory_moves X_mem W_V b_V t _ Ht)).
Qed.

(** The whole layer, back to its two inputs: the decoder hears back through its queries, the encoder through the keys
    and the values it made possible, summed over the heads. *)
Theorem eq_dmemory batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale (B : tensor [batch; h; n_q; n_k])
    (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m]) (W_Q : tensor [d_x; (h * d_k)%nat])
    (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat]) (W_O : tensor [(h * d_v)%nat; d_y])
    (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat]) (b_O : tensor [d_y])
    (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let Y X X_mem := layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O in
  let Q : tensor [batch; h; n_q; d_k] := fun s => split (X.[s] × W_Q ⊕ rows b_Q) in
  let K : tensor [batch; h; n_k; d_k] := fun s => split (X_mem.[s] × W_K ⊕ rows b_K) in
  let V : tensor [batch; h; n_k; d_v] := fun s => split (X_mem.[s] × W_V ⊕ rows b_V) in
  let P : tensor [batch; h; n_q; n_k] := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[r] B.[s].[r] in
  let dO : tensor [batch; h; n_q; d_v] := fun s r => dY.[s] × (rows_of W_O r)^T in
  let dP : tensor [batch; h; n_q; n_k] := fun s r => dO.[s].[r] × V.[s].[r]^T in
  let dS : tensor [batch; h; n_q; n_k] := fun s r i j => P s r i j * (dP s r i j - ∑ k < n_k, P s r i k * dP s r i k) in
  let dQ : tensor [batch; h; n_q; d_k] := fun s r => scale • (dS.[s].[r] × K.[s].[r]) in
  let dK : tensor [batch; h; n_k; d_k] := fun s r => scale • (dS.[s].[r]^T × Q.[s].[r]) in
  let dV : tensor [batch; h; n_k; d_v] := fun s r => P.[s].[r]^T × dO.[s].[r] in
  gradient ℓ (Y X X_mem) dY ->
  gradient (fun X => ℓ (Y X X_mem)) X (fun s i a => ∑ r < h, (dQ.[s].[r] × (columns W_Q r)^T) i a) /\
  gradient (fun X_mem => ℓ (Y X X_mem)) X_mem
    (fun s j a => ∑ r < h, ((dK.[s].[r] × (columns W_K r)^T) j a + (dV.[s].[r] × (columns W_V r)^T) j a)).
Proof.
  intros Y Q K V P dO dP dS dQ dK dV Hℓ.
  pose proof (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ (own_lt h)
    (collect_own_batch _) (collect_own_batch _) Hℓ) as ((HX & _) & (HM & _) & _). split.
  - refine (gradient_ext _ _ _ _ _ HX). intros s _ i _ a _. exact (merge_columns dQ.[s] W_Q i a).
  - refine (gradient_ext _ _ _ _ _ HM). intros s _ j _ a _.
    etransitivity; [exact (f_equal2 Rplus (merge_columns dK.[s] W_K j a) (merge_columns dV.[s] W_V j a))|].
    symmetry. apply (sum_plus h).
Qed.

(** Cross-attention with the heads side by side: the input of W_Q is X, that of W_K and W_V the memory, which gets both
    paths. ℓ may be any function of the packed queries, keys and values. *)
Theorem eq_dX_cross batch n_q n_k d_x d_m w_k w_v (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; w_k]) (W_K : tensor [d_m; w_k]) (W_V : tensor [d_m; w_v]) (b_Q b_K : tensor [w_k])
    (b_V : tensor [w_v]) (ℓ : tensor [batch; n_q; w_k] -> tensor [batch; n_k; w_k] -> tensor [batch; n_k; w_v] -> R)
    (dQ : tensor [batch; n_q; w_k]) (dK : tensor [batch; n_k; w_k]) (dV : tensor [batch; n_k; w_v]) :
  let Q (X : tensor [batch; n_q; d_x]) W_Q s := X.[s] × W_Q ⊕ rows b_Q in
  let K (X_mem : tensor [batch; n_k; d_m]) W_K s := X_mem.[s] × W_K ⊕ rows b_K in
  let V (X_mem : tensor [batch; n_k; d_m]) W_V s := X_mem.[s] × W_V ⊕ rows b_V in
  gradient3 ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V) dQ dK dV ->
  gradient (fun X => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) X (fun s => dQ.[s] × W_Q^T) /\
  gradient (fun X_mem => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) X_mem (fun s => dK.[s] × W_K^T ⊕ dV.[s] × W_V^T) /\
  gradient (fun W_Q => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) W_Q (fun a c => ∑ s < batch, (X.[s]^T × dQ.[s]) a c) /\
  gradient (fun W_K => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) W_K
    (fun a c => ∑ s < batch, (X_mem.[s]^T × dK.[s]) a c) /\
  gradient (fun W_V => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) W_V
    (fun a c => ∑ s < batch, (X_mem.[s]^T × dV.[s]) a c).
Proof.
  intros Q K V H. destruct (gradient3_each _ _ _ _ _ _ _ H) as (HQ & HK & HV).
  pose proof (eq_concat_vjp _ _ _ _ X W_Q b_Q (fun Q => ℓ Q (K X_mem W_K) (V X_mem W_V)) dQ HQ) as (H1 & H3 & _).
  pose proof (eq_concat_vjp _ _ _ _ X_mem W_K b_K (fun K => ℓ (Q X W_Q) K (V X_mem W_V)) dK HK) as (_ & H4 & _).
  pose proof (eq_concat_vjp _ _ _ _ X_mem W_V b_V (fun V => ℓ (Q X W_Q) (K X_mem W_K) V) dV HV) as (_ & H5 & _).
  refine (conj H1 (conj _ (conj H3 (conj H4 H5)))).
  intros y t tY Hy Ht.
  pose proof (packed_moves y (fun _ => W_K) (fun _ => b_K) t tY zero zero Ht (moves_const _ _) (moves_const _ _)) as MK.
  pose proof (packed_moves y (fun _ => W_V) (fun _ => b_V) t tY zero zero Ht (moves_const _ _) (moves_const _ _)) as MV.
  eapply derive_eq.
  - apply (H (fun _ => Q X W_Q) (fun u => K (y u) W_K) (fun u => V (y u) W_V) t zero _ _ eq_refl
      (f_equal (fun y => K y W_K) Hy) (f_equal (fun y => V y W_V) Hy) (moves_const _ _) MK MV).
  - cbv beta. rewrite dot_zero.
    etransitivity; [|symmetry; apply (dot_add3 (fun s => dK.[s] × W_K^T) (fun s => dV.[s] × W_V^T) tY)].
    etransitivity; [exact (f_equal2 Rplus (f_equal2 Rplus eq_refl (batch_adjoint dK (y t) W_K tY zero zero))
      (batch_adjoint dV (y t) W_V tY zero zero))|].
    rewrite !dot_zero. ring.
Qed.

(** ** Two paths into the memory *)

(** The keys' part of dX_mem only moves numbers between the tokens: its rows add up to 0. Where every query has a key,
    the rows of dX_mem add up to those of dO W_Vᵀ, the part of the values. *)
Theorem eq_dmemory_total n_q n_k d_m h d_k d_v (M : nat -> mask) scale (B : tensor [h; n_q; n_k])
    (Q : tensor [h; n_q; d_k]) (K : tensor [h; n_k; d_k]) (V : tensor [h; n_k; d_v]) (W_K : tensor [d_m; (h * d_k)%nat])
    (W_V : tensor [d_m; (h * d_v)%nat]) (dO : tensor [h; n_q; d_v]) a :
  let P : tensor [h; n_q; n_k] := fun r => weights (M r) scale Q.[r] K.[r] B.[r] in
  let dP : tensor [h; n_q; n_k] := fun r => dO.[r] × V.[r]^T in
  let dS : tensor [h; n_q; n_k] := fun r i j => P r i j * (dP r i j - ∑ k < n_k, P r i k * dP r i k) in
  let dK : tensor [h; n_k; d_k] := fun r => scale • (dS.[r]^T × Q.[r]) in
  let dV : tensor [h; n_k; d_v] := fun r => P.[r]^T × dO.[r] in
  let dX_mem := merge dK × W_K^T ⊕ merge dV × W_V^T in
  ∑ j < n_k, (merge dK × W_K^T) j a = 0 /\
  ((forall r i, (r < h)%nat -> (i < n_q)%nat -> live (M r) n_k i) ->
   ∑ j < n_k, dX_mem j a = ∑ i < n_q, (merge dO × W_V^T) i a).
Proof.
  intros P dP dS dK dV dX_mem.
  assert (HK : ∑ j < n_k, (merge dK × W_K^T) j a = 0).
  { unfold matmul at 1. rewrite sum_swap. apply sum_0; intros c Hc. rewrite <- sum_r.
    assert (H0 : ∑ j < n_k, merge dK j c = 0).
    { unfold merge, dK, scaled. rewrite <- sum_l. unfold matmul at 1. rewrite sum_swap. rewrite sum_0;
      [ring|]. intros i _.
      unfold transpose at 1. rewrite <- sum_r. etransitivity; [apply Rmult_eq_compat_r; apply centered_rows|]. ring. }
    etransitivity; [apply Rmult_eq_compat_r; exact H0|]. ring. }
  split; [exact HK|]. intro HL. unfold dX_mem, add. rewrite sum_plus, HK, Rplus_0_l. unfold matmul at 1 2.
  rewrite sum_swap, (sum_swap n_q). apply sum_ext; intros c Hc. rewrite <- !sum_r. f_equal.
  destruct (block_of h d_v c Hc) as (Hr & _). unfold merge, dV, matmul. rewrite sum_swap. apply sum_ext; intros i Hi.
  unfold transpose at 1. rewrite <- sum_r.
  etransitivity; [apply Rmult_eq_compat_r; apply softmax_sum; now apply HL|]. apply Rmult_1_l.
Qed.

Lemma message1 {n m d p} (S : tensor [n; m]) (Q : tensor [n; d]) (W : tensor [d; p]) j a :
  (S^T × Q × W) j a = ∑ i < n, S i j * (Q × W) i a.
Proof.
  unfold matmul, transpose. transitivity (∑ k < d, ∑ i < n, S i j * Q i k * W k a);
    [apply sum_ext; intros; apply sum_r|].
  rewrite sum_swap. apply sum_ext; intros i _. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

Lemma message {n m d p} c (S : tensor [n; m]) (Q : tensor [n; d]) (W : tensor [d; p]) j a :
  ((c • (S^T × Q)) × W) j a = ∑ i < n, c * S i j * (Q × W) i a.
Proof.
  transitivity (c * (S^T × Q × W) j a).
  - unfold scaled. unfold matmul at 1 3. rewrite sum_l. apply sum_ext; intros. ring.
  - rewrite message1, sum_l. apply sum_ext; intros. ring.
Qed.

(** The gradient of the memory, query by query: what query i adds to token j, summed over the heads. dS decides how much
    arrives through the keys, P how much through the values. *)
Theorem eq_dmemory_queries batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k])
    (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m]) (W_Q : tensor [d_x; (h * d_k)%nat])
    (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat]) (W_O : tensor [(h * d_v)%nat; d_y])
    (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat]) (b_O : tensor [d_y])
    (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let Y X_mem := layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O in
  let Q : tensor [batch; h; n_q; d_k] := fun s => split (X.[s] × W_Q ⊕ rows b_Q) in
  let K : tensor [batch; h; n_k; d_k] := fun s => split (X_mem.[s] × W_K ⊕ rows b_K) in
  let V : tensor [batch; h; n_k; d_v] := fun s => split (X_mem.[s] × W_V ⊕ rows b_V) in
  let P : tensor [batch; h; n_q; n_k] := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[r] B.[s].[r] in
  let dO : tensor [batch; h; n_q; d_v] := fun s r => dY.[s] × (rows_of W_O r)^T in
  let dP : tensor [batch; h; n_q; n_k] := fun s r => dO.[s].[r] × V.[s].[r]^T in
  let dS : tensor [batch; h; n_q; n_k] := fun s r i j => P s r i j * (dP s r i j - ∑ k < n_k, P s r i k * dP s r i k) in
  gradient ℓ (Y X_mem) dY ->
  gradient (fun X_mem => ℓ (Y X_mem)) X_mem (fun s j a => ∑ i < n_q, ∑ r < h,
    (scale * dS s r i j * (Q.[s].[r] × (columns W_K r)^T) i a + P s r i j * (dO.[s].[r] × (columns W_V r)^T) i a)).
Proof.
  intros Y Q K V P dO dP dS Hℓ.
  refine (gradient_ext _ _ _ _ _ (proj2 (eq_dmemory batch n_q n_k d_x d_m h d_k d_v d_y M scale B X X_mem W_Q W_K W_V
    W_O b_Q b_K b_V b_O ℓ dY Hℓ))).
  intros s _ j _ a _. simpl. rewrite sum_swap. apply sum_ext; intros r _. rewrite sum_plus. f_equal.
  - exact (message scale dS.[s].[r] Q.[s].[r] ((columns W_K r)^T) j a).
  - exact (message1 P.[s].[r] dO.[s].[r] ((columns W_V r)^T) j a).
Qed.

(** The keys' path is silent where all values are equal: nobody wins by being looked at. *)
Theorem equal_values_silence_the_keys n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) j l :
  let P := weights M scale Q K B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (j < n_k)%nat -> (forall k a, (k < n_k)%nat -> (a < d_v)%nat -> V k a = V j a) -> (scale • (dS^T × Q)) j l = 0.
Proof.
  intros P dP dS Hj HV. apply scaled_0, matmul_0_l; intros i _.
  assert (E : forall k, (k < n_k)%nat -> dP i k = dP i j) by
    (intros k Hk; apply sum_ext; intros a Ha; unfold transpose; now rewrite (HV k a)).
  change (P i j * (dP i j - ∑ k < n_k, P i k * dP i k) = 0).
  transitivity (P i j * (dP i j - ∑ k < n_k, P i k * dP i j)).
  { f_equal. f_equal. apply sum_ext; intros k Hk. now rewrite E. }
  rewrite <- (sum_r (dP i j) n_k (P i)). destruct (live_or_dead M n_k i) as [HL|HD].
  - assert (H1 : sum n_k (P i) = 1) by exact (softmax_sum M (scores scale Q K B) i HL). rewrite H1. ring.
  - unfold P, weights. rewrite softmax_forbidden by auto. ring.
Qed.

(** The keys' path is silent where the queries are zero: then all weights are 1/n_k, and the values' path tells every
    token the same. *)
Theorem zero_queries_silence_the_keys n_q n_k d_k d_v scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (dS : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) :
  let P : tensor [n_q; n_k] := weights everything scale Q K (fun _ _ => 0) in
  (forall i l, (i < n_q)%nat -> (l < d_k)%nat -> Q i l = 0) ->
  (forall j l, (l < d_k)%nat -> (scale • (dS^T × Q)) j l = 0) /\
  (forall i j, (i < n_q)%nat -> P i j = 1 / INR n_k) /\
  (forall j l, (P^T × dO) j l = ∑ i < n_q, 1 / INR n_k * dO i l).
Proof.
  intros P HQ.
  assert (HP : forall i j, (i < n_q)%nat -> P i j = 1 / INR n_k).
  { intros i j Hi.
    assert (S0 : forall k, E everything (scores scale Q K (fun _ _ => 0)) i k = 1).
    { intro k. unfold E, everything, scores, add, scaled. rewrite (matmul_0_l Q (K^T) i k) by (intros; now apply HQ).
      rewrite Rmult_0_r, Rplus_0_r. apply exp_0. }
    unfold P, weights, softmax, Z. rewrite S0. f_equal.
    transitivity (∑ k < n_k, 1); [apply sum_ext; intros; apply S0|]. rewrite sum_const. ring. }
  refine (conj _ (conj HP _)).
  - intros j l Hl. apply scaled_0, matmul_0_r. intros i Hi. now apply HQ.
  - intros j l. apply sum_ext; intros i Hi. unfold transpose. now rewrite HP.
Qed.

(** A token whose weight is 0 for every query hears nothing, on either path. *)
Theorem no_weight_no_message n_q n_k d_k d_v scale (Q : tensor [n_q; d_k]) (P dP : tensor [n_q; n_k])
    (dO : tensor [n_q; d_v]) j l :
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i, (i < n_q)%nat -> P i j = 0) -> (scale • (dS^T × Q)) j l = 0 /\ (P^T × dO) j l = 0.
Proof.
  intros dS HP. split.
  - apply scaled_0, matmul_0_l; intros i Hi. unfold transpose, dS. rewrite HP by exact Hi. ring.
  - apply matmul_0_l; intros i Hi. now apply HP.
Qed.

(** Self-attention is the case memory = X: the layer's two gradients belong to one array, and add. *)
Theorem eq_dmemory_self batch n d h d_k d_v d_y (M : nat -> nat -> mask) scale (B : tensor [batch; h; n; n])
    (X : tensor [batch; n; d]) (W_Q W_K : tensor [d; (h * d_k)%nat]) (W_V : tensor [d; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n; d_y] -> R) (dY : tensor [batch; n; d_y]) :
  let Y X X_mem := layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O in
  let Q : tensor [batch; h; n; d_k] := fun s => split (X.[s] × W_Q ⊕ rows b_Q) in
  let K : tensor [batch; h; n; d_k] := fun s => split (X.[s] × W_K ⊕ rows b_K) in
  let V : tensor [batch; h; n; d_v] := fun s => split (X.[s] × W_V ⊕ rows b_V) in
  let P : tensor [batch; h; n; n] := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[r] B.[s].[r] in
  let dO : tensor [batch; h; n; d_v] := fun s => split (dY.[s] × W_O^T) in
  let dP : tensor [batch; h; n; n] := fun s r => dO.[s].[r] × V.[s].[r]^T in
  let dS : tensor [batch; h; n; n] := fun s r i j => P s r i j * (dP s r i j - ∑ k < n, P s r i k * dP s r i k) in
  let dQ_r : tensor [batch; h; n; d_k] := fun s r => scale • (dS.[s].[r] × K.[s].[r]) in
  let dK_r : tensor [batch; h; n; d_k] := fun s r => scale • (dS.[s].[r]^T × Q.[s].[r]) in
  let dV_r : tensor [batch; h; n; d_v] := fun s r => P.[s].[r]^T × dO.[s].[r] in
  let dX : tensor [batch; n; d] := fun s => merge dQ_r.[s] × W_Q^T in
  let dX_mem : tensor [batch; n; d] := fun s => merge dK_r.[s] × W_K^T ⊕ merge dV_r.[s] × W_V^T in
  gradient ℓ (Y X X) dY -> gradient (fun X => ℓ (Y X X)) X (fun s => dX.[s] ⊕ dX_mem.[s]).
Proof.
  intros Y Q K V P dO dP dS dQ_r dK_r dV_r dX dX_mem Hℓ. apply (fan_out (fun X X_mem => ℓ (Y X X_mem))).
  exact (layer_inputs h h own M scale B X X W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ (own_lt h)
    (collect_own_batch _) (collect_own_batch _) Hℓ).
Qed.

(** ** Padding *)

(** A memory token that the masks hide from every query of every head gets exactly 0. *)
Theorem eq_dmemory_padding batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let Y X X_mem := layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O in
  gradient ℓ (Y X X_mem) dY ->
  exists dX_mem, gradient (fun X_mem => ℓ (Y X X_mem)) X_mem dX_mem /\
    forall s j a, (forall r i, (r < h)%nat -> (i < n_q)%nat -> M s r i j = false) -> dX_mem s j a = 0.
Proof.
  intros Y Hℓ. eexists. split.
  - exact (proj1 (proj1 (proj2 (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ
    dY _ _ (own_lt h)
      (collect_own_batch _) (collect_own_batch _) Hℓ)))).
  - intros s j a HM.
    refine (eq_trans (f_equal2 Rplus (matmul_0_l _ _ _ _ _) (matmul_0_l _ _ _ _ _)) (Rplus_0_l 0)); intros c Hc;
      apply block_of in Hc.
    + apply scaled_0, matmul_0_l; intros i Hi. unfold transpose, centered, weights. rewrite softmax_forbidden by now
      apply HM. ring.
    + apply matmul_0_l; intros i Hi. apply softmax_forbidden. now apply HM.
Qed.

(** The first rows of an array. *)
Definition first {m n} (k : nat) (A : tensor [m; n]) : tensor [k; n] := A.

(** The output is what it would be had the filler never been there: a head that hides all keys from n_k on does not
    read them. *)
Theorem padding_was_never_there n_q n_k filler d_k d_v (M : mask) scale (Q : tensor [n_q; d_k])
    (K : tensor [(n_k + filler)%nat; d_k]) (V : tensor [(n_k + filler)%nat; d_v]) (B : tensor [n_q; (n_k + filler)%nat])
    i c :
  (forall j, (n_k <= j < n_k + filler)%nat -> M i j = false) ->
  attention M scale Q K V B i c = attention M scale Q (first n_k K) (first n_k V) (fun i j => B i j) i c.
Proof.
  intro HM.
  assert (Z0 : Z M (scores scale Q K B) i = Z (n := n_k) M (scores scale Q (first n_k K) B) i).
  { unfold Z. rewrite sum_add, (sum_0 filler); [|intros; apply E_forbidden, HM; lia]. rewrite Rplus_0_r. reflexivity. }
  unfold attention, matmul at 1. rewrite sum_add, (sum_0 filler).
  - rewrite Rplus_0_r. apply sum_ext; intros j _. unfold weights, softmax. now rewrite Z0.
  - intros j Hj. unfold weights. rewrite softmax_forbidden by (apply HM; lia). ring.
Qed.

(** Where the whole source is padding, every query is a dead row, and nothing comes back but db_O. *)
Theorem a_source_of_padding batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let Y := layer h h own M scale B in
  (forall s r i j, (s < batch)%nat -> (r < h)%nat -> (i < n_q)%nat -> (j < n_k)%nat -> M s r i j = false) ->
  gradient ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) dY ->
  (gradient (fun X => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X (fun _ _ _ => 0) /\
   gradient (fun W_Q => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_Q (fun _ _ => 0) /\
   gradient (fun b_Q => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_Q (fun _ => 0)) /\
  (gradient (fun X_mem => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X_mem (fun _ _ _ => 0) /\
   gradient (fun W_K => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_K (fun _ _ => 0) /\
   gradient (fun b_K => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_K (fun _ => 0) /\
   gradient (fun W_V => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_V (fun _ _ => 0) /\
   gradient (fun b_V => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_V (fun _ => 0)) /\
  (gradient (fun W_O => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_O (fun _ _ => 0) /\
   gradient (fun b_O => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_O (fun c => ∑ s < batch, ∑ i < n_q, dY s i c)).
Proof.
  intros Y HM Hℓ.
  destruct (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ (own_lt h)
      (collect_own_batch _) (collect_own_batch _) Hℓ) as ((H1 & H2 & H3) & (H4 & H5 & H6 & H7 & H8) & H9 & H10).
  assert (P0 : forall s r (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (S : tensor [n_q; n_k]) i j,
    (s < batch)%nat -> (r < h)%nat -> (i < n_q)%nat -> (j < n_k)%nat -> weights (M s r) scale Q K S i j = 0).
  { intros. now apply softmax_forbidden, HM. }
  assert (C0 : forall s r (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (S T : tensor [n_q; n_k]) i j,
    (s < batch)%nat -> (r < h)%nat -> (i < n_q)%nat -> (j < n_k)%nat ->
    centered (weights (M s r) scale Q K S) T i j = 0)
    by (intros; unfold centered; rewrite P0 by assumption; ring).
  refine (conj (conj _ (conj _ _)) (conj (conj _ (conj _ (conj _ (conj _ _)))) (conj _ H10))).
  - refine (gradient_ext _ _ _ _ _ H1). intros s Hs i Hi a _. apply matmul_0_l; intros c Hc; apply block_of in Hc.
    apply scaled_0, matmul_0_l; intros j Hj. now apply C0.
  - refine (gradient_ext (s := [d_x; (h * d_k)%nat]) _ _ _ _ _ H2). intros a _ c Hc. apply block_of in
    Hc. apply sum_0; intros s Hs.
    apply matmul_0_r; intros i Hi. apply scaled_0, matmul_0_l; intros j Hj. now apply C0.
  - refine (gradient_ext (s := [(h * d_k)%nat]) _ _ _ _ _ H3). intros c Hc. apply block_of in Hc. apply sum_0;
    intros s Hs. apply sum_0; intros i Hi.
    apply scaled_0, matmul_0_l; intros j Hj. now apply C0.
  - refine (gradient_ext _ _ _ _ _ H4). intros s Hs j Hj a _.
    refine (eq_trans (f_equal2 Rplus (matmul_0_l _ _ _ _ _) (matmul_0_l _ _ _ _ _)) (Rplus_0_l 0)); intros c Hc;
      apply block_of in Hc.
    + apply scaled_0, matmul_0_l; intros i Hi. now apply C0.
    + apply matmul_0_l; intros i Hi. now apply P0.
  - refine (gradient_ext (s := [d_m; (h * d_k)%nat]) _ _ _ _ _ H5). intros a _ c Hc. apply block_of in
    Hc. apply sum_0; intros s Hs.
    apply matmul_0_r; intros j Hj. apply scaled_0, matmul_0_l; intros i Hi. now apply C0.
  - refine (gradient_ext (s := [(h * d_k)%nat]) _ _ _ _ _ H6). intros c Hc. apply block_of in Hc. apply sum_0;
    intros s Hs. apply sum_0; intros j Hj.
    apply scaled_0, matmul_0_l; intros i Hi. now apply C0.
  - refine (gradient_ext (s := [d_m; (h * d_v)%nat]) _ _ _ _ _ H7). intros a _ c Hc. apply block_of in
    Hc. apply sum_0; intros s Hs.
    apply matmul_0_r; intros j Hj. apply matmul_0_l; intros i Hi. now apply P0.
  - refine (gradient_ext (s := [(h * d_v)%nat]) _ _ _ _ _ H8). intros c Hc. apply block_of in Hc. apply sum_0;
    intros s Hs. apply sum_0; intros j Hj.
    apply matmul_0_l; intros i Hi. now apply P0.
  - refine (gradient_ext (s := [(h * d_v)%nat; d_y]) _ _ _ _ _ H9). intros a Ha c _. apply block_of in
    Ha. apply sum_0; intros s Hs.
    apply matmul_0_l; intros i Hi. apply matmul_0_l; intros j Hj. now apply P0.
Qed.

(** ** Several layers over one memory, residual connections *)

(** Every layer of the decoder reads the same memory through weights of its own: the gradient is the sum over all of
    them. ℓ may be any function of all layers' keys and values, so the layers may feed each other. *)
Theorem eq_dmemory_layers layers batch n_k d_m w_k w_v (X_mem : tensor [batch; n_k; d_m])
    (W_K : tensor [layers; d_m; w_k]) (W_V : tensor [layers; d_m; w_v]) (b_K : tensor [layers; w_k])
    (b_V : tensor [layers; w_v]) (ℓ : tensor [layers; batch; n_k; w_k] -> tensor [layers; batch; n_k; w_v] -> R)
    (dK : tensor [layers; batch; n_k; w_k]) (dV : tensor [layers; batch; n_k; w_v]) :
  let K (X_mem : tensor [batch; n_k; d_m]) a s := X_mem.[s] × W_K.[a] ⊕ rows b_K.[a] in
  let V (X_mem : tensor [batch; n_k; d_m]) a s := X_mem.[s] × W_V.[a] ⊕ rows b_V.[a] in
  gradient2 ℓ (K X_mem) (V X_mem) dK dV ->
  gradient (fun X_mem => ℓ (K X_mem) (V X_mem)) X_mem
    (fun s j c => ∑ a < layers, (dK.[a].[s] × W_K.[a]^T ⊕ dV.[a].[s] × W_V.[a]^T) j c).
Proof.
  intros K V H x t tX Hx Ht.
  assert (MK : moves (s := [layers; batch; n_k; w_k]) (fun u => K (x u)) t
    (fun a s => tlinear (x t).[s] W_K.[a] tX.[s] zero zero)).
  { intros a Ha. exact (packed_moves x (fun _ => W_K.[a]) (fun _ => b_K.[a]) t tX zero zero Ht (moves_const _ _)
    (moves_const _ _)). }
  assert (MV : moves (s := [layers; batch; n_k; w_v]) (fun u => V (x u)) t
    (fun a s => tlinear (x t).[s] W_V.[a] tX.[s] zero zero)).
  { intros a Ha. exact (packed_moves x (fun _ => W_V.[a]) (fun _ => b_V.[a]) t tX zero zero Ht (moves_const _ _)
    (moves_const _ _)). }
  eapply derive_eq; [apply (H (fun u => K (x u)) (fun u => V (x u)) t _ _ (f_equal K Hx) (f_equal V Hx) MK MV)|].
  etransitivity; [|exact (dot_copies layers (fun a s => dK.[a].[s] × W_K.[a]^T ⊕ dV.[a].[s] × W_V.[a]^T) tX)].
  etransitivity; [symmetry; apply (sum_plus layers)|]. apply sum_ext; intros a _.
  etransitivity; [exact (f_equal2 Rplus (batch_adjoint dK.[a] (x t) W_K.[a] tX zero zero)
    (batch_adjoint dV.[a] (x t) W_V.[a] tX zero zero))|].
  rewrite !dot_zero, !Rplus_0_r. symmetry. exact
    (dot_add3 (fun s => dK.[a].[s] × W_K.[a]^T) (fun s => dV.[a].[s] × W_V.[a]^T) tX).
Qed.

(** [back F X dF]: dF is what the backward pass of F does at X, with whatever gradient arrives. *)
Definition back {s r} (F : tensor s -> tensor r) (X : tensor s) (dF : tensor r -> tensor s) : Prop :=
  forall (ℓ : tensor r -> R) dY, gradient ℓ (F X) dY -> gradient (fun X => ℓ (F X)) X (dF dY).

(** A map with a backward pass has a velocity: each entry is one of the losses. *)
Fixpoint velocity {s : list nat} : (tensor s -> R) -> tensor s :=
  match s with
  | [] => fun T => T 1
  | _ :: s => fun T i => velocity (fun A : tensor s => T (fun k => if Nat.eqb k i then A else zero))
  end.

Lemma velocity_moves {s} (y : R -> tensor s) t (T : tensor s -> R) :
  (forall A, is_derive (fun u => ⟨A, y u⟩) t (T A)) -> moves y t (velocity T).
Proof.
  induction s as [|n s IH]; intro H.
  - refine (is_derive_ext _ _ _ _ _ (H 1)). intro u. apply Rmult_1_l.
  - intros i Hi. apply (IH (fun u => y u i)). intro A.
    refine (is_derive_ext _ _ _ _ _ (H (fun k => if Nat.eqb k i then A else zero))). intro u.
    change (∑ k < n, ⟨if Nat.eqb k i then A else zero, y u k⟩ = ⟨A, y u i⟩).
    rewrite (sum_one n i); [now rewrite Nat.eqb_refl|exact Hi|]. intros k _ Hk.
    destruct (Nat.eqb_spec k i); [contradiction|]. rewrite dot_comm. apply dot_zero.
Qed.

Lemma back_moves {s r} (F : tensor s -> tensor r) X dF x t tX :
  back F X dF -> x t = X -> moves x t tX ->
  exists tF, moves (fun u => F (x u)) t tF /\ forall dY, ⟨dY, tF⟩ = ⟨dF dY, tX⟩.
Proof.
  intros HF Hx Ht.
  assert (HD : forall A, is_derive (fun u => ⟨A, F (x u)⟩) t ⟨dF A, tX⟩).
  { intro A. exact (HF (fun Y => ⟨A, Y⟩) A (gradient_dot A (F X)) x t tX Hx Ht). }
  exists (velocity (fun A => ⟨dF A, tX⟩)). pose proof
    (velocity_moves (fun u => F (x u)) t (fun A => ⟨dF A, tX⟩) HD) as HM.
  split; [exact HM|]. intro dY.
  pose proof (gradient_dot dY (F (x t)) (fun u => F (x u)) t _ eq_refl HM) as H1. pose proof (HD dY) as H2.
  apply is_derive_unique in H1, H2. congruence.
Qed.

(** A residual connection uses its input twice: what came past the layer, plus what came through it. *)
Lemma residual {b m n} (F : tensor [b; m; n] -> tensor [b; m; n]) X dF :
  back F X dF -> back (s := [b; m; n]) (r := [b; m; n]) (fun X s => X.[s] ⊕ (F X).[s]) X
    (fun dY s => dY.[s] ⊕ (dF dY).[s]).
Proof.
  intros HF ℓ dY Hℓ x t tX Hx Ht. destruct (back_moves F X dF x t tX HF Hx Ht) as (tF & HM & HD).
  eapply derive_eq.
  - apply (Hℓ (fun u s => (x u).[s] ⊕ (F (x u)).[s]) t (fun s => tX.[s] ⊕ tF.[s])); [now rewrite Hx|].
    intros s Hs. exact (add_moves (fun u => (x u).[s]) (fun u => (F (x u)).[s]) t _ _ (Ht s Hs) (HM s Hs)).
  - etransitivity; [apply dot_comm|]. etransitivity; [exact (dot_add3 tX tF dY)|].
    etransitivity; [|symmetry; exact (dot_add3 dY (dF dY) tX)]. rewrite <- HD, (dot_comm tX),
      (dot_comm tF). reflexivity.
Qed.

(** Two layers with residual connections, X₁ = X + cross₁(X) and Y = X₁ + cross₂(X₁): at each the gradient that came
    past the layer and the one that came through it add. The layers may be any maps with a backward pass. *)
Theorem eq_cross_residual batch n d (cross_1 cross_2 : tensor [batch; n; d] -> tensor [batch; n; d])
    (X : tensor [batch; n; d]) (through_1 through_2 : tensor [batch; n; d] -> tensor [batch; n; d])
    (ℓ : tensor [batch; n; d] -> R) (dY : tensor [batch; n; d]) :
  let X_1 (X : tensor [batch; n; d]) : tensor [batch; n; d] := fun s => X.[s] ⊕ (cross_1 X).[s] in
  let Y (X_1 : tensor [batch; n; d]) : tensor [batch; n; d] := fun s => X_1.[s] ⊕ (cross_2 X_1).[s] in
  let dX_1 : tensor [batch; n; d] := fun s => dY.[s] ⊕ (through_2 dY).[s] in
  let dX : tensor [batch; n; d] := fun s => dX_1.[s] ⊕ (through_1 dX_1).[s] in
  back cross_1 X through_1 -> back cross_2 (X_1 X) through_2 -> gradient ℓ (Y (X_1 X)) dY ->
  gradient (fun X_1 => ℓ (Y X_1)) (X_1 X) dX_1 /\ gradient (fun X => ℓ (Y (X_1 X))) X dX.
Proof.
  intros X_1 Y dX_1 dX H1 H2 Hℓ.
  pose proof (residual cross_2 (X_1 X) through_2 H2 ℓ dY Hℓ) as G. split; [exact G|].
  exact (residual cross_1 X through_1 H1 (fun X_1 => ℓ (Y X_1)) dX_1 G).
Qed.

(** From the memory on into the encoder: one layer of self-attention with a residual connection. Its three paths add up
    to dX_self, and past them runs the residual. *)
Theorem eq_dmemory_encoder batch n d h d_k d_v (M : nat -> nat -> mask) scale (B : tensor [batch; h; n; n])
    (E : tensor [batch; n; d]) (W_Q W_K : tensor [d; (h * d_k)%nat]) (W_V : tensor [d; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d]) (ℓ : tensor [batch; n; d] -> R) (dX_mem : tensor [batch; n; d]) :
  let self E := layer h h own M scale B E E W_Q W_K W_V W_O b_Q b_K b_V b_O in
  let X_mem (E : tensor [batch; n; d]) : tensor [batch; n; d] := fun s => E.[s] ⊕ (self E).[s] in
  let Q : tensor [batch; h; n; d_k] := fun s => split (E.[s] × W_Q ⊕ rows b_Q) in
  let K : tensor [batch; h; n; d_k] := fun s => split (E.[s] × W_K ⊕ rows b_K) in
  let V : tensor [batch; h; n; d_v] := fun s => split (E.[s] × W_V ⊕ rows b_V) in
  let P : tensor [batch; h; n; n] := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[r] B.[s].[r] in
  let dO : tensor [batch; h; n; d_v] := fun s => split (dX_mem.[s] × W_O^T) in
  let dP : tensor [batch; h; n; n] := fun s r => dO.[s].[r] × V.[s].[r]^T in
  let dS : tensor [batch; h; n; n] := fun s r i j => P s r i j * (dP s r i j - ∑ k < n, P s r i k * dP s r i k) in
  let dQ_r : tensor [batch; h; n; d_k] := fun s r => scale • (dS.[s].[r] × K.[s].[r]) in
  let dK_r : tensor [batch; h; n; d_k] := fun s r => scale • (dS.[s].[r]^T × Q.[s].[r]) in
  let dV_r : tensor [batch; h; n; d_v] := fun s r => P.[s].[r]^T × dO.[s].[r] in
  let dX_self : tensor [batch; n; d] := fun s =>
    merge dQ_r.[s] × W_Q^T ⊕ (merge dK_r.[s] × W_K^T ⊕ merge dV_r.[s] × W_V^T) in
  gradient ℓ (X_mem E) dX_mem -> gradient (fun E => ℓ (X_mem E)) E (fun s => dX_mem.[s] ⊕ dX_self.[s]).
Proof.
  intros self X_mem Q K V P dO dP dS dQ_r dK_r dV_r dX_self Hℓ.
  exact (residual self E _ (fun ℓ' dY H' => eq_dmemory_self _ _ _ _ _ _ _ M scale B E W_Q W_K W_V W_O b_Q b_K b_V b_O
    ℓ' dY H') ℓ dX_mem Hℓ).
Qed.

(** ** The cache *)

(** The layer with stored keys and values: it does not know who made them. *)
Definition cached {batch n_q n_k d_x d_k d_v d_y} h h_kv (g : nat -> nat) (M : nat -> nat -> mask) scale
  (B : tensor [batch; h; n_q; n_k])
  (K : tensor [batch; n_k; (h_kv * d_k)%nat]) (V : tensor [batch; n_k; (h_kv * d_v)%nat]) (X : tensor [batch; n_q; d_x])
  (W_Q : tensor [d_x; (h * d_k)%nat]) (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q : tensor [(h * d_k)%nat])
  (b_O : tensor [d_y])
  : tensor [batch; n_q; d_y] :=
  fun s => linear (merge (heads g (M s) scale (split (linear X.[s] W_Q b_Q)) (split K.[s]) (split V.[s])
    B.[s])) W_O b_O.

(** A constant cache keeps the gradients of X, W_Q, b_Q, W_O and b_O: they are those of the layer that made its keys and
    values. The memory, W_K, W_V and b_V get 0 from it, whatever the layer gives them. *)
Theorem eq_cache_groups batch n_q n_k d_x d_m h h_kv d_k d_v d_y g (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h_kv * d_k)%nat]) (W_V : tensor [d_m; (h_kv * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q : tensor [(h * d_k)%nat]) (b_K : tensor [(h_kv * d_k)%nat])
    (b_V : tensor [(h_kv * d_v)%nat]) (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) :
  let Y X W_Q W_O b_Q b_O := layer h h_kv g M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O in
  let K : tensor [batch; n_k; (h_kv * d_k)%nat] := fun s => X_mem.[s] × W_K ⊕ rows b_K in
  let V : tensor [batch; n_k; (h_kv * d_v)%nat] := fun s => X_mem.[s] × W_V ⊕ rows b_V in
  let Y' X W_Q W_O b_Q b_O := cached h h_kv g M scale B K V X W_Q W_O b_Q b_O in
  (forall dX, gradient (fun X => ℓ (Y X W_Q W_O b_Q b_O)) X dX <-> gradient (fun X => ℓ (Y' X W_Q W_O b_Q b_O)) X dX) /\
  (forall dW, gradient (fun W_Q => ℓ (Y X W_Q W_O b_Q b_O)) W_Q dW <->
     gradient (fun W_Q => ℓ (Y' X W_Q W_O b_Q b_O)) W_Q dW) /\
  (forall db, gradient (fun b_Q => ℓ (Y X W_Q W_O b_Q b_O)) b_Q db <->
     gradient (fun b_Q => ℓ (Y' X W_Q W_O b_Q b_O)) b_Q db) /\
  (forall dW, gradient (fun W_O => ℓ (Y X W_Q W_O b_Q b_O)) W_O dW <->
     gradient (fun W_O => ℓ (Y' X W_Q W_O b_Q b_O)) W_O dW) /\
  (forall db, gradient (fun b_O => ℓ (Y X W_Q W_O b_Q b_O)) b_O db <->
     gradient (fun b_O => ℓ (Y' X W_Q W_O b_Q b_O)) b_O db) /\
  gradient (fun X_mem => ℓ (Y' X W_Q W_O b_Q b_O)) X_mem zero /\
  gradient (fun W_K => ℓ (Y' X W_Q W_O b_Q b_O)) W_K zero /\
  gradient (fun W_V => ℓ (Y' X W_Q W_O b_Q b_O)) W_V zero /\
  gradient (fun b_V => ℓ (Y' X W_Q W_O b_Q b_O)) b_V zero.
Proof.
  intros Y K V Y'. repeat apply conj; try (intro d; split; intro H; exact H); apply gradient_const.
Qed.

Lemma not_lost {s} (ℓ : tensor s -> R) (x : R -> tensor s) (f : R -> R) t (tX : tensor s) v :
  (forall u, f u = ℓ (x u)) -> moves x t tX -> is_derive f t v -> v <> 0 -> ~ gradient ℓ (x t) zero.
Proof.
  intros Hf Ht Hv Hn H. apply Hn, (derivative_unique f t _ _ Hv). apply (is_derive_ext (fun u => ℓ (x u))).
  - intro u. now rewrite Hf.
  - eapply derive_eq; [exact (H x t tX eq_refl Ht)|]. now rewrite dot_comm, dot_zero.
Qed.

(** The memory, W_K, W_V and b_V need the way the cache was made: in this example none of their gradients is 0. One
    query, two tokens in the memory, all arrays with one column, all weights 1, all biases 0, and the output for the
    loss. *)
Theorem eq_cache_groups__lost :
  let X_mem : tensor [1%nat; 2%nat; 1%nat] := fun _ j _ => if (j =? 0)%nat then 0 else 1 in
  let one : tensor [1%nat; 1%nat] := fun _ _ => 1 in
  let none : tensor [1%nat] := fun _ => 0 in
  let loss X_mem W_K W_V b_V := layer (batch := 1) (n_q := 1) (n_k := 2) (d_x := 1) (d_k := 1) (d_v := 1) (d_y := 1)
    1 1 own (fun _ _ => everything) 1 (fun _ _ _ _ => 0) (fun _ => one) X_mem one W_K W_V one none none b_V none
    0%nat 0%nat 0%nat in
  ~ gradient (fun X_mem => loss X_mem one one none) X_mem zero /\
  ~ gradient (fun W_K => loss X_mem W_K one none) one zero /\
  ~ gradient (fun W_V => loss X_mem one W_V none) one zero /\
  ~ gradient (fun b_V => loss X_mem one one b_V) none zero.
Proof.
  intros X_mem one none loss.
  assert (HL : forall x w_K w_V b,
    loss (fun _ j _ => if (j =? 0)%nat then 0 else x) (fun _ _ => w_K) (fun _ _ => w_V) (fun _ => b)
    = exp (x * w_K) / (1 + exp (x * w_K)) * (x * w_V) + b).
  { intros. unfold loss, layer, linear, merge, heads, attention, weights, softmax, Z, E, scores, split, part, own.
    unfold everything, matmul, transpose, add, scaled, one, none. simpl.
    replace (1 * (0 + (0 + 1 * 1 + 0) * (0 + x * w_K + 0)) + 0) with (x * w_K) by ring.
    replace (1 * (0 + (0 + 1 * 1 + 0) * (0 + 0 * w_K + 0)) + 0) with 0 by ring.
    rewrite exp_0. pose proof (exp_pos (x * w_K)). field. lra. }
  assert (Did : forall t, is_derive (fun u : R => u) t 1) by exact is_derive_id.
  pose proof (exp_pos 1) as He. set (p := exp 1 / (1 + exp 1)).
  assert (Hp : 0 < p) by (apply Rdiv_lt_0_compat; lra).
  assert (Hp1 : p < 1) by (apply (Rmult_lt_reg_r (1 + exp 1)); [lra|]; unfold p; field_simplify; lra).
  assert (Hq : 0 < p * (1 - p)) by (apply Rmult_lt_0_compat; lra).
  assert (Dp : is_derive (fun u => exp u / (1 + exp u)) 1 (p * (1 - p))).
  { eapply derive_eq; [apply (derive_div exp (fun u => 1 + exp u) 1 (exp 1) (0 + exp 1)); [apply is_derive_exp| |lra]|].
    - apply (derive_plus (fun _ => 1) exp); [apply derive_const|apply is_derive_exp].
    - unfold p. field. lra. }
  repeat apply conj.
  - apply (not_lost (fun X_mem => loss X_mem one one none) (fun u _ j _ => if (j =? 0)%nat then 0 else u)
      (fun u => exp u / (1 + exp u) * u) 1 (fun _ j _ => if (j =? 0)%nat then 0 else 1) (p * (1 - p) + p)); [| | |lra].
    + intro u. unfold one, none. rewrite HL, Rmult_1_r. ring.
    + intros s _ j _ a _. destruct (j =? 0)%nat; [apply derive_const|exact (Did 1)].
    + eapply derive_eq; [apply (derive_mult (fun u => exp u / (1 + exp u)) (fun u => u)); [exact Dp|apply Did]|].
      unfold p. ring.
  - apply (not_lost (fun W_K => loss X_mem W_K one none) (fun u _ _ => u) (fun u => exp u / (1 + exp u)) 1
      (fun _ _ => 1) (p * (1 - p))); [| |exact Dp|lra].
    + intro u. unfold X_mem, one, none. rewrite HL, Rmult_1_l. ring.
    + intros s _ j _. exact (Did 1).
  - apply (not_lost (fun W_V => loss X_mem one W_V none) (fun u _ _ => u) (fun u => p * u) 1 (fun _ _ => 1) p);
      [| | |lra].
    + intro u. unfold X_mem, one, none, p. rewrite HL, !Rmult_1_l. ring.
    + intros s _ j _. exact (Did 1).
    + eapply derive_eq; [apply derive_scale, Did|apply Rmult_1_r].
  - apply (not_lost (fun b_V => loss X_mem one one b_V) (fun u _ => u) (fun u => p + u) 0 (fun _ => 1) 1); [| | |lra].
    + intro u. unfold X_mem, one, p. rewrite HL, !Rmult_1_l. ring.
    + intros s _. exact (Did 0).
    + eapply derive_eq; [apply derive_plus; [apply derive_const|apply Did]|]. apply Rplus_0_l.
Qed.

Lemma regroup (a b c a' b' c' d : R) : d = a + a' -> a + b + c + (a' + b' + c') = d + b + b' + c + c'.
Proof. intros ->. ring. Qed.

(** What the uses of one array get adds up, when the loss reads a copy at each step. *)
Lemma copies_derive {T batch n d_m w_k w_v} (ℓ : tensor [T; batch; n; w_k] -> tensor [T; batch; n; w_v] -> R)
    (K : tensor [batch; n; w_k]) (V : tensor [batch; n; w_v]) (dK_t : tensor [T; batch; n; w_k])
    (dV_t : tensor [T; batch; n; w_v]) (x : R -> tensor [batch; n; d_m]) w_K w_V b_K b_V t tX tW_K tW_V tb_K tb_V :
  let dK : tensor [batch; n; w_k] := fun s j c => ∑ t < T, dK_t t s j c in
  let dV : tensor [batch; n; w_v] := fun s j c => ∑ t < T, dV_t t s j c in
  gradient2 ℓ (fun _ => K) (fun _ => V) dK_t dV_t ->
  (fun s => linear (x t).[s] (w_K t) (b_K t)) = K -> (fun s => linear (x t).[s] (w_V t) (b_V t)) = V ->
  moves x t tX -> moves w_K t tW_K -> moves w_V t tW_V -> moves b_K t tb_K -> moves b_V t tb_V ->
  is_derive (fun u => ℓ (fun _ s => linear (x u).[s] (w_K u) (b_K u)) (fun _ s => linear (x u).[s] (w_V u) (b_V u))) t
    (dot (s := [batch; n; d_m]) (fun s => dK.[s] × (w_K t)^T ⊕ dV.[s] × (w_V t)^T) tX +
     dot (s := [d_m; w_k]) (fun a c => ∑ s < batch, ((x t).[s]^T × dK.[s]) a c) tW_K +
     dot (s := [d_m; w_v]) (fun a c => ∑ s < batch, ((x t).[s]^T × dV.[s]) a c) tW_V +
     dot (s := [w_k]) (fun c => ∑ s < batch, ∑ j < n, dK.[s] j c) tb_K +
     dot (s := [w_v]) (fun c => ∑ s < batch, ∑ j < n, dV.[s] j c) tb_V).
Proof.
  intros dK dV H EK EV HX HWK HWV HbK HbV.
  eapply derive_eq.
  - apply (H (fun u _ s => linear (x u).[s] (w_K u) (b_K u)) (fun u _ s => linear (x u).[s] (w_V u) (b_V u)) t
      (fun _ s => tlinear (x t).[s] (w_K t) tX.[s] tW_K tb_K) (fun _ s => tlinear (x t).[s] (w_V t) tX.[s] tW_V tb_V)
      (f_equal (fun K _ => K) EK) (f_equal (fun V _ => V) EV)); intros a _;
      [exact (packed_moves x w_K b_K t _ _ _ HX HWK HbK)|exact (packed_moves x w_V b_V t _ _ _ HX HWV HbV)].
  - etransitivity; [exact (f_equal2 Rplus (dot_copies T dK_t (fun s => tlinear (x t).[s] (w_K t) tX.[s] tW_K tb_K))
      (dot_copies T dV_t (fun s => tlinear (x t).[s] (w_V t) tX.[s] tW_V tb_V)))|].
    etransitivity; [exact (f_equal2 Rplus (batch_adjoint dK (x t) (w_K t) tX tW_K tb_K)
      (batch_adjoint dV (x t) (w_V t) tX tW_V tb_V))|].
    assert (E : dot (s := [batch; n; d_m]) (fun s => dK.[s] × (w_K t)^T ⊕ dV.[s] × (w_V t)^T) tX =
      dot (s := [batch; n; d_m]) (fun s => dK.[s] × (w_K t)^T) tX +
        dot (s := [batch; n; d_m]) (fun s => dV.[s] × (w_V t)^T) tX)
      by exact (dot_add3 (fun s => dK.[s] × (w_K t)^T) (fun s => dV.[s] × (w_V t)^T) tX).
    exact (regroup _ _ _ _ _ _ _ E).
Qed.

(** A cache that keeps its way back: each step adds its share to dK and dV, and one projection, at the end, takes the
    sums to the memory and the weights. ℓ may be any function of what the steps read. *)
Theorem eq_cache_vjp steps batch n_k d_m w_k w_v (X_mem : tensor [batch; n_k; d_m]) (W_K : tensor [d_m; w_k])
    (W_V : tensor [d_m; w_v]) (b_K : tensor [w_k]) (b_V : tensor [w_v])
    (ℓ : tensor [steps; batch; n_k; w_k] -> tensor [steps; batch; n_k; w_v] -> R)
    (dK_t : tensor [steps; batch; n_k; w_k]) (dV_t : tensor [steps; batch; n_k; w_v]) :
  let K (X_mem : tensor [batch; n_k; d_m]) W_K : tensor [batch; n_k; w_k] := fun s => X_mem.[s] × W_K ⊕ rows b_K in
  let V (X_mem : tensor [batch; n_k; d_m]) W_V b_V : tensor [batch; n_k; w_v] := fun s => X_mem.[s] × W_V ⊕ rows b_V in
  let loss X_mem W_K W_V b_V := ℓ (fun t => K X_mem W_K) (fun t => V X_mem W_V b_V) in
  let dK : tensor [batch; n_k; w_k] := fun s j c => ∑ t < steps, dK_t t s j c in
  let dV : tensor [batch; n_k; w_v] := fun s j c => ∑ t < steps, dV_t t s j c in
  gradient2 ℓ (fun t => K X_mem W_K) (fun t => V X_mem W_V b_V) dK_t dV_t ->
  gradient (fun W_K => loss X_mem W_K W_V b_V) W_K (fun a c => ∑ s < batch, (X_mem.[s]^T × dK.[s]) a c) /\
  gradient (fun W_V => loss X_mem W_K W_V b_V) W_V (fun a c => ∑ s < batch, (X_mem.[s]^T × dV.[s]) a c) /\
  gradient (fun b_V => loss X_mem W_K W_V b_V) b_V (fun c => ∑ s < batch, ∑ j < n_k, dV.[s] j c) /\
  gradient (fun X_mem => loss X_mem W_K W_V b_V) X_mem (fun s => dK.[s] × W_K^T ⊕ dV.[s] × W_V^T).
Proof.
  intros K V loss dK dV H. refine (conj _ (conj _ (conj _ _))); intros x t tX Hx Ht.
  - refine (derive_eq _ _ _ _ (copies_derive ℓ _ _ dK_t dV_t (fun _ => X_mem) x (fun _ => W_V) (fun _ => b_K)
    (fun _ => b_V) t zero tX zero zero zero
      H (f_equal (fun W => K X_mem W) Hx) eq_refl (moves_const _ _) Ht (moves_const _ _) (moves_const _ _)
        (moves_const _ _)) _).
    rewrite !dot_zero, ?Rplus_0_l, ?Rplus_0_r. reflexivity.
  - refine (derive_eq _ _ _ _ (copies_derive ℓ _ _ dK_t dV_t (fun _ => X_mem) (fun _ => W_K) x (fun _ => b_K)
    (fun _ => b_V) t zero zero tX zero zero
      H eq_refl (f_equal (fun W => V X_mem W b_V) Hx) (moves_const _ _) (moves_const _ _) Ht (moves_const _ _)
        (moves_const _ _)) _).
    rewrite !dot_zero, ?Rplus_0_l, ?Rplus_0_r. reflexivity.
  - refine (derive_eq _ _ _ _ (copies_derive ℓ _ _ dK_t dV_t (fun _ => X_mem) (fun _ => W_K) (fun _ => W_V)
    (fun _ => b_K) x t zero zero zero zero tX
      H eq_refl (f_equal (fun b => V X_mem W_V b) Hx) (moves_const _ _) (moves_const _ _) (moves_const _ _)
        (moves_const _ _) Ht) _).
    rewrite !dot_zero, ?Rplus_0_l, ?Rplus_0_r. reflexivity.
  - refine (derive_eq _ _ _ _ (copies_derive ℓ _ _ dK_t dV_t x (fun _ => W_K) (fun _ => W_V) (fun _ => b_K)
    (fun _ => b_V) t tX zero zero zero zero
      H (f_equal (fun X => K X W_K) Hx) (f_equal (fun X => V X W_V b_V) Hx) Ht (moves_const _ _) (moves_const _ _)
        (moves_const _ _) (moves_const _ _)) _).
    rewrite !dot_zero, !Rplus_0_r. reflexivity.
Qed.

(** Layers that share W_K, b_K, W_V and b_V read one cache: its gradients add first, then one projection is enough. *)
Theorem eq_memory_shared_layers layers batch n_k d_m w_k w_v (X_mem : tensor [batch; n_k; d_m])
    (W_K : tensor [d_m; w_k]) (W_V : tensor [d_m; w_v]) (b_K : tensor [w_k]) (b_V : tensor [w_v])
    (ℓ : tensor [layers; batch; n_k; w_k] -> tensor [layers; batch; n_k; w_v] -> R)
    (dK_a : tensor [layers; batch; n_k; w_k]) (dV_a : tensor [layers; batch; n_k; w_v]) :
  let K (X_mem : tensor [batch; n_k; d_m]) W_K : tensor [batch; n_k; w_k] := fun s => X_mem.[s] × W_K ⊕ rows b_K in
  let V (X_mem : tensor [batch; n_k; d_m]) W_V : tensor [batch; n_k; w_v] := fun s => X_mem.[s] × W_V ⊕ rows b_V in
  let loss X_mem W_K W_V := ℓ (fun a => K X_mem W_K) (fun a => V X_mem W_V) in
  let dK : tensor [batch; n_k; w_k] := fun s j c => ∑ a < layers, dK_a a s j c in
  let dV : tensor [batch; n_k; w_v] := fun s j c => ∑ a < layers, dV_a a s j c in
  gradient2 ℓ (fun a => K X_mem W_K) (fun a => V X_mem W_V) dK_a dV_a ->
  gradient (fun W_K => loss X_mem W_K W_V) W_K (fun a c => ∑ s < batch, (X_mem.[s]^T × dK.[s]) a c) /\
  gradient (fun W_V => loss X_mem W_K W_V) W_V (fun a c => ∑ s < batch, (X_mem.[s]^T × dV.[s]) a c) /\
  gradient (fun X_mem => loss X_mem W_K W_V) X_mem (fun s => dK.[s] × W_K^T ⊕ dV.[s] × W_V^T).
Proof.
  intros K V loss dK dV H.
  destruct (eq_cache_vjp _ _ _ _ _ _ X_mem W_K W_V b_K b_V ℓ dK_a dV_a H) as (H1 & H2 & _ & H3). exact
    (conj H1 (conj H2 H3)).
Qed.

(** Positions added to the memory for the keys only: R is used on one path and gets that path only, and over the
    tokens its gradient sums to 0. *)
Theorem eq_memory_positions batch n_q n_k d_m h d_k d_v (M : nat -> nat -> mask) scale (B : tensor [batch; h; n_q; n_k])
    (Q : tensor [batch; h; n_q; d_k]) (X_mem : tensor [batch; n_k; d_m]) (W_K : tensor [d_m; (h * d_k)%nat])
    (W_V : tensor [d_m; (h * d_v)%nat]) (ℓ : tensor [batch; h; n_q; d_v] -> R) (dO : tensor [batch; h; n_q; d_v])
    (R : tensor [n_k; d_m]) :
  let K (R : tensor [n_k; d_m]) : tensor [batch; h; n_k; d_k] := fun s => split ((X_mem.[s] ⊕ R) × W_K) in
  let V : tensor [batch; h; n_k; d_v] := fun s => split (X_mem.[s] × W_V) in
  let O (R : tensor [n_k; d_m]) s := heads own (M s) scale Q.[s] (K R).[s] V.[s] B.[s] in
  let P : tensor [batch; h; n_q; n_k] := fun s r => weights (M s r) scale Q.[s].[r] (K R).[s].[r] B.[s].[r] in
  let dP : tensor [batch; h; n_q; n_k] := fun s r => dO.[s].[r] × V.[s].[r]^T in
  let dS : tensor [batch; h; n_q; n_k] := fun s r i j => P s r i j * (dP s r i j - ∑ k < n_k, P s r i k * dP s r i k) in
  let dK_r : tensor [batch; h; n_k; d_k] := fun s r => scale • (dS.[s].[r]^T × Q.[s].[r]) in
  let dK : tensor [batch; n_k; (h * d_k)%nat] := fun s => merge dK_r.[s] in
  gradient ℓ (O R) dO ->
  gradient (fun R => ℓ (O R)) R (fun j a => ∑ s < batch, (dK.[s] × W_K^T) j a) /\
  forall s a, ∑ j < n_k, (dK.[s] × W_K^T) j a = 0.
Proof.
  intros K V O P dP dS dK_r dK Hℓ. split.
  - pose proof (proj1 (proj2 (gradient3_each _ _ _ _ _ _ _ (heads_derive own M scale B Q (K R) V ℓ dO _ _ (own_lt h)
      (collect_own_batch _) (collect_own_batch _) Hℓ)))) as HK.
    intros x t tX Hx Ht. eapply derive_eq.
    + apply (HK (fun u => K (x u)) t (fun s => split (tX × W_K)) (f_equal K Hx)).
      intros s Hs. apply (split_moves (fun u => (X_mem.[s] ⊕ x u) × W_K)). intros j Hj c Hc.
      apply (sum_derive d_m (fun k u => (X_mem.[s] j k + x u j k) * W_K k c)). intros k Hk.
      eapply derive_eq; [apply derive_mult; [apply derive_plus; [apply derive_const|exact (Ht j Hj k Hk)]|apply
        derive_const]|cbv beta; ring].
    + etransitivity; [|exact (dot_total2 batch (fun s => dK.[s] × W_K^T) tX)].
      apply sum_ext; intros s _. etransitivity; [exact (dot_split dK_r.[s] (tX × W_K))|]. exact
        (dot_matmul_r dK.[s] tX W_K).
  - intros s a. exact (proj1 (eq_dmemory_total n_q n_k d_m h d_k d_v (M s) scale B.[s] Q.[s] (K R).[s] V.[s] W_K
    W_V dO.[s] a)).
Qed.

(** ** Step by step *)

(** The causal pass is a stack of steps: query t, the last token so far, reads the keys 0 to t. Its dQ is the step's
    own; each key and value collects from the step that made it and all later ones. *)
Theorem eq_cache_steps n d_k d_v scale (Q K : tensor [n; d_k]) (V : tensor [n; d_v]) (B : tensor [n; n])
    (ℓ : tensor [n; d_v] -> R) (dO : tensor [n; d_v]) :
  let Q_t t : tensor [1%nat; d_k] := fun _ => Q t in
  let K_t t := first (S t) K in
  let V_t t := first (S t) V in
  let B_t t : tensor [1%nat; S t] := fun _ => B t in
  let dO_t t : tensor [1%nat; d_v] := fun _ => dO t in
  let P_t t := weights everything scale (Q_t t) (K_t t) (B_t t) in
  let dP_t t := dO_t t × (V_t t)^T in
  let dS_t t : tensor [1%nat; S t] := fun i j => P_t t i j * (dP_t t i j - ∑ k < S t, P_t t i k * dP_t t i k) in
  let dQ_t t := scale • (dS_t t × K_t t) in
  let dK_t t := scale • ((dS_t t)^T × Q_t t) in
  let dV_t t := (P_t t)^T × dO_t t in
  (forall t c, (t < n)%nat ->
     attention causal scale Q K V B t c = attention everything scale (Q_t t) (K_t t) (V_t t) (B_t t) 0%nat c) /\
  (gradient ℓ (attention causal scale Q K V B) dO ->
   gradient (fun Q => ℓ (attention causal scale Q K V B)) Q (fun t a => dQ_t t 0%nat a) /\
   gradient (fun K => ℓ (attention causal scale Q K V B)) K
     (fun j a => ∑ t < n, if (j <=? t)%nat then dK_t t j a else 0) /\
   gradient (fun V => ℓ (attention causal scale Q K V B)) V
     (fun j c => ∑ t < n, if (j <=? t)%nat then dV_t t j c else 0)).
Proof.
  intros Q_t K_t V_t B_t dO_t P_t dP_t dS_t dQ_t dK_t dV_t.
  assert (HZ : forall t, (t < n)%nat -> Z causal (scores scale Q K B) t =
    Z everything (scores scale (Q_t t) (K_t t) (B_t t)) 0%nat).
  { intros t Ht. unfold Z. rewrite (sum_first (S t) n); [|lia|].
    - apply sum_ext; intros k Hk. unfold E, causal, everything. destruct (Nat.leb_spec k t); [reflexivity|lia].
    - intros j Hj _. apply E_forbidden. apply Nat.leb_gt. lia. }
  assert (HP : forall t j, (t < n)%nat -> (j <= t)%nat -> weights causal scale Q K B t j = P_t t 0%nat j).
  { intros t j Ht Hj. unfold P_t, weights, softmax. rewrite HZ by exact Ht. unfold E, causal, everything.
    destruct (Nat.leb_spec j t); [reflexivity|lia]. }
  assert (H0 : forall t j, (t < j)%nat -> weights causal scale Q K B t j = 0).
  { intros t j Hj. apply softmax_forbidden. apply Nat.leb_gt. exact Hj. }
  assert (HS : forall t j, (t < n)%nat -> (j <= t)%nat -> centered (weights causal scale Q K B) (dO × V^T) t j =
    dS_t t 0%nat j).
  { intros t j Ht Hj. unfold centered. rewrite HP by assumption. unfold dS_t. f_equal. f_equal.
    rewrite (sum_first (S t) n); [|lia|intros; rewrite H0 by lia; ring].
    apply sum_ext; intros k Hk. rewrite HP by lia. reflexivity. }
  assert (HS0 : forall t j, (t < j)%nat -> centered (weights causal scale Q K B) (dO × V^T) t j = 0).
  { intros t j Hj. unfold centered. rewrite H0 by exact Hj. ring. }
  split.
  - intros t c Ht. unfold attention, matmul. rewrite (sum_first (S t) n); [|lia|intros; rewrite H0 by lia; ring].
    apply sum_ext; intros j Hj. rewrite HP by lia. reflexivity.
  - intro Hℓ. refine (conj _ (conj _ _)).
    + refine (gradient_ext (s := [n; d_k]) _ _ _ _ _ (gradient_Q causal scale Q K V B ℓ dO Hℓ)). intros t Ht a _.
      change (scale * (∑ j < n, centered (weights causal scale Q K B) (dO × V^T) t j * K j a) = scale * ∑ j < S t,
        dS_t t 0%nat j * K j a).
      f_equal. rewrite (sum_first (S t) n); [|lia|intros; rewrite HS0 by lia; ring].
      apply sum_ext; intros j Hj. now rewrite HS by lia.
    + refine (gradient_ext (s := [n; d_k]) _ _ _ _ _ (gradient_K causal scale Q K V B ℓ dO Hℓ)). intros j Hj a _.
      change (scale * (∑ t < n, centered (weights causal scale Q K B) (dO × V^T) t j * Q t a) = ∑ t < n,
        if (j <=? t)%nat then dK_t t j a else 0).
      rewrite sum_l. apply sum_ext; intros t Ht. destruct (Nat.leb_spec j t) as [H|H].
      * rewrite HS by lia. change (scale * (dS_t t 0%nat j * Q t a) = scale * (0 + dS_t t 0%nat j * Q t a)). ring.
      * rewrite HS0 by lia. ring.
    + refine (gradient_ext (s := [n; d_v]) _ _ _ _ _ (gradient_V causal scale Q K V B ℓ dO Hℓ)). intros j Hj c _.
      change ((∑ t < n, weights causal scale Q K B t j * dO t c) = ∑ t < n, if (j <=? t)%nat then dV_t t j c else 0).
      apply sum_ext; intros t Ht. destruct (Nat.leb_spec j t) as [H|H].
      * rewrite HP by lia. change (P_t t 0%nat j * dO t c = 0 + P_t t 0%nat j * dO t c). ring.
      * rewrite H0 by lia. ring.
Qed.
