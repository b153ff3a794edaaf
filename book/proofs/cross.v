(** * Cross-attention: the memory and the cache (chapter 7)

    The layer is that of heads.v: queries from X, keys and values from the memory. Here is what comes back to the memory,
    from heads, queries, layers and steps, and what a cache keeps or loses. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export heads.

(** ** Lemmas *)

(** When the memory alone moves. *)
Lemma memory_moves {batch n m h d} (x : R -> tensor [batch; n; m]) (W : tensor [m; (h * d)%nat]) (b : tensor [(h * d)%nat]) t tX :
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
Lemma packed_moves {batch n m p} (x : R -> tensor [batch; n; m]) (w : R -> tensor [m; p]) (b : R -> tensor [p]) t tX tW tb :
  moves x t tX -> moves w t tW -> moves b t tb ->
  moves (s := [batch; n; p]) (fun u s => linear (x u).[s] (w u) (b u)) t (fun s => tlinear (x t).[s] (w t) tX.[s] tW tb).
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

(** ** The chapter's theorems *)

(** Move the memory and nothing else: the loss has a speed through each key and each value of each head. *)
Theorem step_cross_loss batch n_k d_m h d_k d_v (X_mem : R -> tensor [batch; n_k; d_m]) t (tX_mem : tensor [batch; n_k; d_m])
    (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat]) (b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (ℓ : tensor [batch; h; n_k; d_k] -> tensor [batch; h; n_k; d_v] -> R)
    (dK : tensor [batch; h; n_k; d_k]) (dV : tensor [batch; h; n_k; d_v]) :
  let K (X_mem : tensor [batch; n_k; d_m]) s := split (X_mem.[s] × W_K ⊕ rows b_K) in
  let V (X_mem : tensor [batch; n_k; d_m]) s := split (X_mem.[s] × W_V ⊕ rows b_V) in
  gradient2 ℓ (K (X_mem t)) (V (X_mem t)) dK dV ->
  moves X_mem t tX_mem ->
  is_derive (fun u => ℓ (K (X_mem u)) (V (X_mem u))) t
    ((∑ s < batch, ∑ r < h, ⟨dK.[s].[r], tX_mem.[s] × columns W_K r⟩) +
     (∑ s < batch, ∑ r < h, ⟨dV.[s].[r], tX_mem.[s] × columns W_V r⟩)).
Proof.
  intros K V H Ht.
  exact (H (fun u => K (X_mem u)) (fun u => V (X_mem u)) t _ _ eq_refl eq_refl (memory_moves X_mem W_K b_K t _ Ht) (memory_moves X_mem W_V b_V t _ Ht)).
Qed.

(** The whole layer, back to its two inputs: the decoder hears back through its queries, the encoder through the keys and
    the values it made possible, summed over the heads. *)
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

(** The same with the heads side by side: the input of W_K and W_V is the memory. ℓ may be any function of the packed
    queries, keys and values. *)
Theorem eq_dX_cross batch n_q n_k d_x d_m w_k w_v (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; w_k]) (W_K : tensor [d_m; w_k]) (W_V : tensor [d_m; w_v]) (b_Q b_K : tensor [w_k]) (b_V : tensor [w_v])
    (ℓ : tensor [batch; n_q; w_k] -> tensor [batch; n_k; w_k] -> tensor [batch; n_k; w_v] -> R)
    (dQ : tensor [batch; n_q; w_k]) (dK : tensor [batch; n_k; w_k]) (dV : tensor [batch; n_k; w_v]) :
  let Q (X : tensor [batch; n_q; d_x]) W_Q s := X.[s] × W_Q ⊕ rows b_Q in
  let K (X_mem : tensor [batch; n_k; d_m]) W_K s := X_mem.[s] × W_K ⊕ rows b_K in
  let V (X_mem : tensor [batch; n_k; d_m]) W_V s := X_mem.[s] × W_V ⊕ rows b_V in
  gradient3 ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V) dQ dK dV ->
  gradient (fun X => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) X (fun s => dQ.[s] × W_Q^T) /\
  gradient (fun X_mem => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) X_mem (fun s => dK.[s] × W_K^T ⊕ dV.[s] × W_V^T) /\
  gradient (fun W_Q => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) W_Q (fun a c => ∑ s < batch, (X.[s]^T × dQ.[s]) a c) /\
  gradient (fun W_K => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) W_K (fun a c => ∑ s < batch, (X_mem.[s]^T × dK.[s]) a c) /\
  gradient (fun W_V => ℓ (Q X W_Q) (K X_mem W_K) (V X_mem W_V)) W_V (fun a c => ∑ s < batch, (X_mem.[s]^T × dV.[s]) a c).
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
    etransitivity; [exact (f_equal2 Rplus (f_equal2 Rplus eq_refl (linear_adjoint dK (y t) W_K tY zero zero)) (linear_adjoint dV (y t) W_V tY zero zero))|].
    rewrite !dot_zero. ring.
Qed.

(** ** Two paths into the memory *)

(** The keys' path only moves gradient between the tokens: over the tokens it sums to 0. Where every query has a key, the
    total comes through the values alone. *)
Theorem eq_dmemory_total n_q n_k d_m h d_k d_v (M : nat -> mask) scale (B : tensor [h; n_q; n_k]) (Q : tensor [h; n_q; d_k])
    (K : tensor [h; n_k; d_k]) (V : tensor [h; n_k; d_v]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (dO : tensor [h; n_q; d_v]) a :
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
    { unfold merge, dK, scaled. rewrite <- sum_l. unfold matmul at 1. rewrite sum_swap. rewrite sum_0; [ring|]. intros i _.
      unfold transpose at 1. rewrite <- sum_r. etransitivity; [apply Rmult_eq_compat_r; apply centered_softmax_rows|]. ring. }
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
  unfold matmul, transpose. transitivity (∑ k < d, ∑ i < n, S i j * Q i k * W k a); [apply sum_ext; intros; apply sum_r|].
  rewrite sum_swap. apply sum_ext; intros i _. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

Lemma message {n m d p} c (S : tensor [n; m]) (Q : tensor [n; d]) (W : tensor [d; p]) j a :
  ((c • (S^T × Q)) × W) j a = ∑ i < n, c * S i j * (Q × W) i a.
Proof.
  transitivity (c * (S^T × Q × W) j a).
  - unfold scaled. unfold matmul at 1 3. rewrite sum_l. apply sum_ext; intros. ring.
  - rewrite message1, sum_l. apply sum_ext; intros. ring.
Qed.

(** Each query sends two messages into the memory, one made from what it asked, one from what it would have liked to hear. *)
Theorem eq_dmemory_queries n_q n_k d_m h d_k d_v scale (P dS : tensor [h; n_q; n_k]) (Q : tensor [h; n_q; d_k])
    (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat]) (dO : tensor [h; n_q; d_v]) j a :
  let dK : tensor [h; n_k; d_k] := fun r => scale • (dS.[r]^T × Q.[r]) in
  let dV : tensor [h; n_k; d_v] := fun r => P.[r]^T × dO.[r] in
  let dX_mem := merge dK × W_K^T ⊕ merge dV × W_V^T in
  dX_mem j a = ∑ i < n_q, ∑ r < h,
    (scale * dS r i j * (Q.[r] × (columns W_K r)^T) i a + P r i j * (dO.[r] × (columns W_V r)^T) i a).
Proof.
  intros dK dV dX_mem. unfold dX_mem, add. rewrite !merge_columns, <- sum_plus, sum_swap. apply sum_ext; intros r _.
  rewrite sum_plus. f_equal.
  - exact (message scale dS.[r] Q.[r] ((columns W_K r)^T) j a).
  - etransitivity; [exact (message1 P.[r] dO.[r] ((columns W_V r)^T) j a)|reflexivity].
Qed.

(** Self-attention is the case memory = X: the layer's two gradients belong to one array, and add. *)
Theorem eq_dmemory_self batch n d h d_k d_v d_y (M : nat -> nat -> mask) scale (B : tensor [batch; h; n; n])
    (X : tensor [batch; n; d]) (W_Q W_K : tensor [d; (h * d_k)%nat]) (W_V : tensor [d; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat]) (b_O : tensor [d_y])
    (ℓ : tensor [batch; n; d_y] -> R) (dY : tensor [batch; n; d_y]) :
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
Theorem eq_dmemory_padding batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale (B : tensor [batch; h; n_q; n_k])
    (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m]) (W_Q : tensor [d_x; (h * d_k)%nat])
    (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat]) (W_O : tensor [(h * d_v)%nat; d_y])
    (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat]) (b_O : tensor [d_y])
    (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let Y X X_mem := layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O in
  gradient ℓ (Y X X_mem) dY ->
  exists dX_mem, gradient (fun X_mem => ℓ (Y X X_mem)) X_mem dX_mem /\
    forall s j a, (forall r i, M s r i j = false) -> dX_mem s j a = 0.
Proof.
  intros Y Hℓ. eexists. split.
  - exact (proj1 (proj1 (proj2 (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ (own_lt h)
      (collect_own_batch _) (collect_own_batch _) Hℓ)))).
  - intros s j a HM. cbv beta. unfold add. unfold matmul at 1. rewrite sum_0; [unfold matmul at 1; rewrite sum_0; [ring|]|]; intros c Hc.
    + unfold merge, part, matmul at 1, transpose at 1. rewrite sum_0; [ring|]. intros i Hi.
      unfold weights. rewrite softmax_forbidden by apply HM. ring.
    + unfold merge, part, scaled, matmul at 1, transpose at 1. rewrite sum_0; [ring|]. intros i Hi.
      unfold centered, weights. rewrite softmax_forbidden by apply HM. ring.
Qed.

(** The first rows of an array. *)
Definition first {m n} (k : nat) (A : tensor [m; n]) : tensor [k; n] := A.

(** Everything else is what it would be had the filler never been there: a head that hides all keys from n_k on does not read them. *)
Theorem padding_was_never_there n_q n_k filler d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [(n_k + filler)%nat; d_k])
    (V : tensor [(n_k + filler)%nat; d_v]) (B : tensor [n_q; (n_k + filler)%nat]) i c :
  (forall j, (n_k <= j)%nat -> M i j = false) ->
  attention M scale Q K V B i c = attention M scale Q (first n_k K) (first n_k V) (fun i j => B i j) i c.
Proof.
  intro HM.
  assert (Z0 : Z M (scores scale Q K B) i = Z (n := n_k) M (scores scale Q (first n_k K) B) i).
  { unfold Z. rewrite sum_add, (sum_0 filler); [|intros; apply E_forbidden, HM; lia]. rewrite Rplus_0_r. reflexivity. }
  unfold attention, matmul at 1. rewrite sum_add, (sum_0 filler).
  - rewrite Rplus_0_r. apply sum_ext; intros j _. unfold weights, softmax. now rewrite Z0.
  - intros j _. unfold weights. rewrite softmax_forbidden by (apply HM; lia). ring.
Qed.

(** Where the whole source is padding, every query is a dead row, and nothing comes back but db_O. *)
Theorem a_source_of_padding batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale (B : tensor [batch; h; n_q; n_k])
    (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m]) (W_Q : tensor [d_x; (h * d_k)%nat])
    (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat]) (W_O : tensor [(h * d_v)%nat; d_y])
    (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat]) (b_O : tensor [d_y])
    (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let Y := layer h h own M scale B in
  (forall s r i j, M s r i j = false) ->
  gradient ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) dY ->
  gradient (fun X => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X (fun _ _ _ => 0) /\
  gradient (fun X_mem => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X_mem (fun _ _ _ => 0) /\
  gradient (fun W_O => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_O (fun _ _ => 0) /\
  gradient (fun b_O => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_O (fun c => ∑ s < batch, ∑ i < n_q, dY s i c).
Proof.
  intros Y HM Hℓ.
  pose proof (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ (own_lt h)
      (collect_own_batch _) (collect_own_batch _) Hℓ) as ((H1 & _) & (H2 & _) & H3 & H4).
  refine (conj _ (conj _ (conj _ H4))).
  - refine (gradient_ext _ _ _ _ _ H1). intros s _ i _ a _. cbn [equal]. unfold matmul at 1. apply sum_0; intros c Hc.
    unfold merge, part, scaled, matmul at 1. rewrite sum_0; [ring|]. intros k Hk.
    unfold centered, weights. rewrite softmax_forbidden by apply HM. ring.
  - refine (gradient_ext _ _ _ _ _ H2). intros s _ j _ a _. refine (eq_trans (f_equal2 Rplus (sum_0 (h * d_k) _ _) (sum_0 (h * d_v) _ _)) (Rplus_0_l 0)); intros c Hc.
    + unfold merge, part, scaled, matmul at 1, transpose at 1. rewrite sum_0; [ring|]. intros i Hi.
      unfold centered, weights. rewrite softmax_forbidden by apply HM. ring.
    + unfold merge, part, matmul at 1, transpose at 1. rewrite sum_0; [ring|]. intros i Hi.
      unfold weights. rewrite softmax_forbidden by apply HM. ring.
  - refine (gradient_ext (s := [(h * d_v)%nat; d_y]) _ _ _ _ _ H3). intros a _ c _. cbn [equal]. apply sum_0; intros s _. unfold matmul at 1.
    apply sum_0; intros i _. unfold transpose, merge, part, heads, attention, matmul at 1. rewrite sum_0; [ring|]. intros k Hk.
    unfold weights. rewrite softmax_forbidden by apply HM. ring.
Qed.

(** ** Several layers over one memory, residual connections *)

(** Every layer of the decoder reads the same memory through weights of its own: the gradient is the sum over all of them.
    ℓ may be any function of all layers' keys and values, so the layers may feed each other. *)
Theorem eq_dmemory_layers layers batch n_k d_m w_k w_v (X_mem : tensor [batch; n_k; d_m]) (W_K : tensor [layers; d_m; w_k])
    (W_V : tensor [layers; d_m; w_v]) (b_K : tensor [layers; w_k]) (b_V : tensor [layers; w_v])
    (ℓ : tensor [layers; batch; n_k; w_k] -> tensor [layers; batch; n_k; w_v] -> R)
    (dK : tensor [layers; batch; n_k; w_k]) (dV : tensor [layers; batch; n_k; w_v]) :
  let K (X_mem : tensor [batch; n_k; d_m]) a s := X_mem.[s] × W_K.[a] ⊕ rows b_K.[a] in
  let V (X_mem : tensor [batch; n_k; d_m]) a s := X_mem.[s] × W_V.[a] ⊕ rows b_V.[a] in
  gradient2 ℓ (K X_mem) (V X_mem) dK dV ->
  gradient (fun X_mem => ℓ (K X_mem) (V X_mem)) X_mem
    (fun s j c => ∑ a < layers, (dK.[a].[s] × W_K.[a]^T ⊕ dV.[a].[s] × W_V.[a]^T) j c).
Proof.
  intros K V H x t tX Hx Ht.
  assert (MK : moves (s := [layers; batch; n_k; w_k]) (fun u => K (x u)) t (fun a s => tlinear (x t).[s] W_K.[a] tX.[s] zero zero)).
  { intros a Ha. exact (packed_moves x (fun _ => W_K.[a]) (fun _ => b_K.[a]) t tX zero zero Ht (moves_const _ _) (moves_const _ _)). }
  assert (MV : moves (s := [layers; batch; n_k; w_v]) (fun u => V (x u)) t (fun a s => tlinear (x t).[s] W_V.[a] tX.[s] zero zero)).
  { intros a Ha. exact (packed_moves x (fun _ => W_V.[a]) (fun _ => b_V.[a]) t tX zero zero Ht (moves_const _ _) (moves_const _ _)). }
  eapply derive_eq; [apply (H (fun u => K (x u)) (fun u => V (x u)) t _ _ (f_equal K Hx) (f_equal V Hx) MK MV)|].
  etransitivity; [|exact (dot_copies layers (fun a s => dK.[a].[s] × W_K.[a]^T ⊕ dV.[a].[s] × W_V.[a]^T) tX)].
  etransitivity; [symmetry; apply (sum_plus layers)|]. apply sum_ext; intros a _.
  etransitivity; [exact (f_equal2 Rplus (linear_adjoint dK.[a] (x t) W_K.[a] tX zero zero) (linear_adjoint dV.[a] (x t) W_V.[a] tX zero zero))|].
  rewrite !dot_zero, !Rplus_0_r. symmetry. exact (dot_add3 (fun s => dK.[a].[s] × W_K.[a]^T) (fun s => dV.[a].[s] × W_V.[a]^T) tX).
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
  exists (velocity (fun A => ⟨dF A, tX⟩)). pose proof (velocity_moves (fun u => F (x u)) t (fun A => ⟨dF A, tX⟩) HD) as HM.
  split; [exact HM|]. intro dY.
  pose proof (gradient_dot dY (F (x t)) (fun u => F (x u)) t _ eq_refl HM) as H1. pose proof (HD dY) as H2.
  apply is_derive_unique in H1, H2. congruence.
Qed.

(** A residual connection uses its input twice: what came past the layer, plus what came through it. *)
Lemma residual {b m n} (F : tensor [b; m; n] -> tensor [b; m; n]) X dF :
  back F X dF -> back (s := [b; m; n]) (r := [b; m; n]) (fun X s => X.[s] ⊕ (F X).[s]) X (fun dY s => dY.[s] ⊕ (dF dY).[s]).
Proof.
  intros HF ℓ dY Hℓ x t tX Hx Ht. destruct (back_moves F X dF x t tX HF Hx Ht) as (tF & HM & HD).
  eapply derive_eq.
  - apply (Hℓ (fun u s => (x u).[s] ⊕ (F (x u)).[s]) t (fun s => tX.[s] ⊕ tF.[s])); [now rewrite Hx|].
    intros s Hs. exact (add_moves (fun u => (x u).[s]) (fun u => (F (x u)).[s]) t _ _ (Ht s Hs) (HM s Hs)).
  - etransitivity; [apply dot_comm|]. etransitivity; [exact (dot_add3 tX tF dY)|].
    etransitivity; [|symmetry; exact (dot_add3 dY (dF dY) tX)]. rewrite <- HD, (dot_comm tX), (dot_comm tF). reflexivity.
Qed.

(** Two layers with residual connections, X₁ = X + cross₁(X) and Y = X₁ + cross₂(X₁): at each the gradient that came past
    the layer and the one that came through it add. The layers may be any maps with a backward pass. *)
Theorem eq_cross_residual batch n d (cross_1 cross_2 : tensor [batch; n; d] -> tensor [batch; n; d]) (X : tensor [batch; n; d])
    (through_1 through_2 : tensor [batch; n; d] -> tensor [batch; n; d]) (ℓ : tensor [batch; n; d] -> R) (dY : tensor [batch; n; d]) :
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

(** And on into the encoder: one layer of self-attention with a residual connection. Its three paths add up to dX_self,
    and past them runs the residual. *)
Theorem eq_dmemory_encoder batch n d h d_k d_v (M : nat -> nat -> mask) scale (B : tensor [batch; h; n; n])
    (E : tensor [batch; n; d]) (W_Q W_K : tensor [d; (h * d_k)%nat]) (W_V : tensor [d; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat]) (b_O : tensor [d])
    (ℓ : tensor [batch; n; d] -> R) (dX_mem : tensor [batch; n; d]) :
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
  exact (residual self E _ (fun ℓ' dY H' => eq_dmemory_self _ _ _ _ _ _ _ M scale B E W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ' dY H') ℓ dX_mem Hℓ).
Qed.
