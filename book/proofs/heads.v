(** * Several heads (chapter 5)

    The whole layer: a batch of sequences, each with a memory of its own; projections with biases, split, h heads,
    merge, output matrix. Query head r reads key head [g r]: with [g r = r] each has its own, with [g r = r * h_kv /
    h] neighbours share. Any masks (one a sequence and head), any biases of the scores B. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export head.

(** ** Definitions *)

Definition split {n h d} (T : tensor [n; (h * d)%nat]) : tensor [h; n; d] := fun r i l => T i (r * d + l)%nat.
Definition merge {n h d} (T : tensor [h; n; d]) : tensor [n; (h * d)%nat] := fun i c => T (c / d)%nat i (c mod d)%nat.

Definition rows {m n} (b : tensor [n]) : tensor [m; n] := fun _ j => b j.

(** The columns of W that make head r, and the rows of W_O that read it. *)
Definition columns {n h d} (W : tensor [n; (h * d)%nat]) (r : nat) : tensor [n; d] := fun a l => W a (r * d + l)%nat.
Definition rows_of {h d n} (W : tensor [(h * d)%nat; n]) (r : nat) : tensor [d; n] := fun l c => W (r * d + l)%nat c.

Definition heads {h h_kv n_q n_k d_k d_v} (g : nat -> nat) (M : nat -> mask) scale (Q : tensor [h; n_q; d_k])
  (K : tensor [h_kv; n_k; d_k]) (V : tensor [h_kv; n_k; d_v]) (B : tensor [h; n_q; n_k]) : tensor [h; n_q; d_v] :=
  fun r => attention (M r) scale Q.[r] K.[g r] V.[g r] B.[r].

Definition layer {batch n_q n_k d_x d_m d_k d_v d_y} h h_kv (g : nat -> nat) (M : nat -> nat -> mask) scale
  (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
  (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h_kv * d_k)%nat]) (W_V : tensor [d_m; (h_kv * d_v)%nat])
  (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q : tensor [(h * d_k)%nat]) (b_K : tensor [(h_kv * d_k)%nat])
  (b_V : tensor [(h_kv * d_v)%nat]) (b_O : tensor [d_y]) : tensor [batch; n_q; d_y] :=
  fun s =>
    let Q := split (linear X.[s] W_Q b_Q) in
    let K := split (linear X_mem.[s] W_K b_K) in
    let V := split (linear X_mem.[s] W_V b_V) in
    linear (merge (heads g (M s) scale Q K V B.[s])) W_O b_O.

Definition own : nat -> nat := fun r => r.

(** ** Split, merge, groups: how numbers change places *)

Lemma block_lt h d r l : (r < h)%nat -> (l < d)%nat -> (r * d + l < h * d)%nat.
Proof. nia. Qed.

Lemma div_block d r l : (l < d)%nat -> ((r * d + l) / d)%nat = r.
Proof. intro H. rewrite Nat.div_add_l by lia. rewrite Nat.div_small by exact H. lia. Qed.

Lemma mod_block d r l : (l < d)%nat -> ((r * d + l) mod d)%nat = l.
Proof. intro H. rewrite Nat.add_comm, Nat.mod_add by lia. now apply Nat.mod_small. Qed.

Lemma block_of h d c : (c < h * d)%nat -> (c / d < h)%nat /\ (c mod d < d)%nat /\ (c / d * d + c mod d)%nat = c.
Proof.
  intro H. assert (d <> 0)%nat by (intro; subst; lia). repeat split.
  - apply Nat.div_lt_upper_bound; [assumption|]. lia.
  - now apply Nat.mod_upper_bound.
  - rewrite Nat.mul_comm. symmetry. now apply Nat.div_mod.
Qed.

Lemma dot_split {n h d} (A : tensor [h; n; d]) (T : tensor [n; (h * d)%nat]) : ⟨A, split T⟩ = ⟨merge A, T⟩.
Proof.
  unfold split, merge. simpl. rewrite sum_swap. apply sum_ext; intros i _. rewrite sum_mul.
  apply sum_ext; intros r _. apply sum_ext; intros l Hl. now rewrite div_block, mod_block.
Qed.

Lemma dot_merge {n h d} (A : tensor [n; (h * d)%nat]) (T : tensor [h; n; d]) : ⟨A, merge T⟩ = ⟨split A, T⟩.
Proof. now rewrite dot_comm, <- dot_split, dot_comm. Qed.

Lemma split_moves {n h d} (x : R -> tensor [n; (h * d)%nat]) t tX :
  moves x t tX -> moves (s := [h; n; d]) (fun u => split (x u)) t (split tX).
Proof. intros H r Hr i Hi l Hl. apply H; [exact Hi|now apply block_lt]. Qed.

Lemma merge_moves {n h d} (x : R -> tensor [h; n; d]) t tX :
  moves x t tX -> moves (s := [n; (h * d)%nat]) (fun u => merge (x u)) t (merge tX).
Proof. intros H i Hi c Hc. destruct (block_of h d c Hc) as (H1 & H2 & _). now apply H. Qed.

(** What the query heads of a group hold, added up for their key head. *)
Definition collect {n d} h (g : nat -> nat) (A : nat -> tensor [n; d]) : nat -> tensor [n; d] :=
  fun k i l => ∑ r < h, if (g r =? k)%nat then A r i l else 0.

Lemma dot_collect {h h_kv n d} g (A : nat -> tensor [n; d]) (K : tensor [h_kv; n; d]) :
  (forall r, (r < h)%nat -> (g r < h_kv)%nat) -> ∑ r < h, ⟨A r, K.[g r]⟩ = ∑ k < h_kv, ⟨collect h g A k, K.[k]⟩.
Proof.
  intro Hg. unfold collect. simpl.
  transitivity (∑ r < h, ∑ k < h_kv, δ (g r) k * ∑ i < n, ∑ l < d, A r i l * K k i l).
  { apply sum_ext; intros r Hr. now rewrite sum_δ by auto. }
  rewrite sum_swap. apply sum_ext; intros k _.
  transitivity (∑ r < h, ∑ i < n, ∑ l < d, (if (g r =? k)%nat then A r i l else 0) * K k i l).
  { apply sum_ext; intros r _. rewrite sum_l. apply sum_ext; intros i _. rewrite sum_l. apply sum_ext; intros l _.
    unfold δ. destruct (Nat.eqb (g r) k); ring. }
  rewrite sum_swap. apply sum_ext; intros i _. rewrite sum_swap. apply sum_ext; intros l _. now rewrite sum_r.
Qed.

Lemma collect_own {h n d} (A : nat -> tensor [n; d]) : equal (s := [h; n; d]) (collect h own A) A.
Proof.
  intros k Hk i _ l _. unfold collect, own. simpl. rewrite (sum_one h k); [|exact Hk|].
  - now rewrite Nat.eqb_refl.
  - intros r _ Hr. destruct (Nat.eqb_spec r k); [contradiction|reflexivity].
Qed.

(** ** The linear maps, for a batch *)

Lemma dot_total2 {m n} b (A : tensor [b; m; n]) (T : tensor [m; n]) :
  ∑ s < b, ⟨A.[s], T⟩ = dot (s := [m; n]) (fun i j => ∑ s < b, A s i j) T.
Proof.
  simpl. rewrite sum_swap. apply sum_ext; intros i _. rewrite sum_swap. apply sum_ext; intros j _. now rewrite sum_r.
Qed.

Lemma dot_total1 {n} b (A : tensor [b; n]) (T : tensor [n]) :
  ∑ s < b, ⟨A.[s], T⟩ = dot (s := [n]) (fun j => ∑ s < b, A s j) T.
Proof. simpl. rewrite sum_swap. apply sum_ext; intros j _. now rewrite sum_r. Qed.

Definition tlinear {m n p} (X : tensor [m; n]) (W : tensor [n; p]) (tX : tensor [m; n]) (tW : tensor [n; p])
  (tb : tensor [p]) : tensor [m; p] := (tX × W ⊕ X × tW) ⊕ rows tb.

Lemma batch_adjoint {b m n p} (A : tensor [b; m; p]) (X : tensor [b; m; n]) (W : tensor [n; p]) (tX : tensor [b; m; n])
    (tW : tensor [n; p]) (tb : tensor [p]) :
  ∑ s < b, ⟨A.[s], tlinear X.[s] W tX.[s] tW tb⟩ =
    dot (s := [b; m; n]) (fun s => A.[s] × W^T) tX + dot (s := [n; p]) (fun a c => ∑ s < b, (X.[s]^T × A.[s]) a c) tW +
    dot (s := [p]) (fun c => ∑ s < b, ∑ i < m, A s i c) tb.
Proof.
  rewrite <- (dot_total2 b (fun s => X.[s]^T × A.[s])), <- (dot_total1 b (fun s => colsum A.[s])).
  change (dot (s := [b; m; n]) (fun s => A.[s] × W^T) tX) with (∑ s < b, dot (s := [m; n]) (A.[s] × W^T) tX.[s]).
  rewrite <- !sum_plus. apply sum_ext; intros s _. unfold tlinear, rows.
  now rewrite !dot_add_r, dot_rows, (dot_matmul_r A.[s] tX.[s]), (dot_matmul_l A.[s] X.[s]).
Qed.

(** ** The heads *)

(** How the output of one head moves when its queries, keys and values do. *)
Definition tattention {n_q n_k d_k d_v} (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
  (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k])
  (tV : tensor [n_k; d_v]) : tensor [n_q; d_v] :=
  let P := weights M scale Q K B in centered P (scale • (tQ × K^T ⊕ Q × tK^T)) × V ⊕ P × tV.

Lemma tattention_moves {n_q n_k d_k d_v} M scale (q : R -> tensor [n_q; d_k]) (k : R -> tensor [n_k; d_k])
    (v : R -> tensor [n_k; d_v]) (B : tensor [n_q; n_k]) t tQ tK tV :
  moves q t tQ -> moves k t tK -> moves v t tV ->
  moves (s := [n_q; d_v]) (fun u => attention M scale (q u) (k u) (v u) B) t
    (tattention M scale (q t) (k t) (v t) B tQ tK tV).
Proof.
  intros HQ HK HV.
  refine (matmul_moves (fun u => weights M scale (q u) (k u) B) v t _ _ _ HV).
  refine (softmax_moves M (fun u => scores scale (q u) (k u) B) t _ _).
  intros i Hi j Hj. unfold scores. eapply derive_eq.
  - apply (derive_plus (fun u => (scale • (q u × (k u)^T)) i j) (fun _ => B i j)); [|apply derive_const].
    apply (scaled_moves scale (fun u => q u × (k u)^T) t _
      (matmul_moves q (fun u => (k u)^T) t _ _ HQ (transpose_moves k t _ HK)) i Hi j Hj).
  - cbv beta. ring.
Qed.

Lemma tattention_adjoint {n_q n_k d_k d_v} M scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (tQ : tensor [n_q; d_k]) (tK : tensor [n_k; d_k])
    (tV : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dS := centered P (dO × V^T) in
  ⟨dO, tattention M scale Q K V B tQ tK tV⟩ = ⟨scale • (dS × K), tQ⟩ + ⟨scale • (dS^T × Q), tK⟩ + ⟨P^T × dO, tV⟩.
Proof.
  intros P dS. unfold tattention. fold P.
  rewrite dot_add_r, (dot_matmul_r dO), (dot_matmul_l dO P), centered_adjoint. fold dS.
  rewrite dot_scaled_r, dot_add_r, !dot_scaled_l, (dot_matmul_r dS tQ), (dot_matmul_l dS Q), dot_transpose.
  replace ⟨dS × (K^T)^T, tQ⟩ with ⟨dS × K, tQ⟩ by reflexivity.
  replace ⟨(Q^T × dS)^T, tK⟩ with ⟨dS^T × Q, tK⟩; [ring|].
  apply dot_ext; [|apply equal_refl].
  intros i _ j _. unfold matmul, transpose. simpl. apply sum_ext; intros. ring.
Qed.

(** A loss of three arrays. *)
Definition gradient3 {s r p : list nat} (ℓ : tensor s -> tensor r -> tensor p -> R) (X : tensor s) (Y : tensor r)
  (Z : tensor p) dX dY dZ : Prop :=
  forall (x : R -> tensor s) (y : R -> tensor r) (z : R -> tensor p) (t : R) tX tY tZ,
    x t = X -> y t = Y -> z t = Z -> moves x t tX -> moves y t tY -> moves z t tZ ->
    is_derive (fun u => ℓ (x u) (y u) (z u)) t (⟨dX, tX⟩ + ⟨dY, tY⟩ + ⟨dZ, tZ⟩).

Lemma gradient3_each {s r p} (ℓ : tensor s -> tensor r -> tensor p -> R) X Y Z dX dY dZ :
  gradient3 ℓ X Y Z dX dY dZ ->
  gradient (fun X => ℓ X Y Z) X dX /\ gradient (fun Y => ℓ X Y Z) Y dY /\ gradient (fun Z => ℓ X Y Z) Z dZ.
Proof.
  intro H. refine (conj _ (conj _ _)).
  - intros x t tX Hx Ht. eapply derive_eq; [apply (H x (fun _ => Y) (fun _ => Z) t tX zero zero);
    auto using moves_const|].
    rewrite !dot_zero. ring.
  - intros y t tY Hy Ht. eapply derive_eq; [apply (H (fun _ => X) y (fun _ => Z) t zero tY zero);
    auto using moves_const|].
    rewrite !dot_zero. ring.
  - intros z t tZ Hz Ht. eapply derive_eq; [apply (H (fun _ => X) (fun _ => Y) z t zero zero tZ);
    auto using moves_const|].
    rewrite !dot_zero. ring.
Qed.

Lemma sum_plus3 n f g k : ∑ i < n, (f i + g i + k i) = sum n f + sum n g + sum n k.
Proof. now rewrite !sum_plus. Qed.

(** All heads, for a batch. [dK] and [dV] are any names for what the groups collect. *)
Lemma heads_derive {batch h h_kv n_q n_k d_k d_v} g (M : nat -> nat -> mask) scale (B : tensor [batch; h; n_q; n_k])
    (Q : tensor [batch; h; n_q; d_k]) (K : tensor [batch; h_kv; n_k; d_k]) (V : tensor [batch; h_kv; n_k; d_v])
    (ℓ : tensor [batch; h; n_q; d_v] -> R) (dO : tensor [batch; h; n_q; d_v]) (dK : tensor [batch; h_kv; n_k; d_k])
    (dV : tensor [batch; h_kv; n_k; d_v]) :
  let P := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[g r] B.[s].[r] in
  let dS := fun s r => centered (P s r) (dO.[s].[r] × V.[s].[g r]^T) in
  (forall r, (r < h)%nat -> (g r < h_kv)%nat) ->
  equal (s := [batch; h_kv; n_k; d_k]) (fun s => collect h g (fun r => scale • ((dS s r)^T × Q.[s].[r]))) dK ->
  equal (s := [batch; h_kv; n_k; d_v]) (fun s => collect h g (fun r => (P s r)^T × dO.[s].[r])) dV ->
  gradient ℓ (fun s => heads g (M s) scale Q.[s] K.[s] V.[s] B.[s]) dO ->
  gradient3 (fun Q K V => ℓ (fun s => heads g (M s) scale Q.[s] K.[s] V.[s] B.[s])) Q K V
    (fun s r => scale • (dS s r × K.[s].[g r])) dK dV.
Proof.
  intros P dS Hg EK EV Hℓ q k v t tQ tK tV HQ HK HV tHQ tHK tHV.
  eapply derive_eq.
  - apply (Hℓ (fun u s => heads g (M s) scale (q u).[s] (k u).[s] (v u).[s] B.[s]) t
      (fun s r => tattention (M s r) scale Q.[s].[r] K.[s].[g r] V.[s].[g r] B.[s].[r] tQ.[s].[r] tK.[s].[g r]
        tV.[s].[g r])).
    + now rewrite HQ, HK, HV.
    + intros s Hs r Hr. rewrite <- HQ, <- HK, <- HV.
      apply (tattention_moves (M s r) scale (fun u => (q u).[s].[r]) (fun u => (k u).[s].[g r])
        (fun u => (v u).[s].[g r]));
        [exact (tHQ s Hs r Hr)|exact (tHK s Hs (g r) (Hg r Hr))|exact (tHV s Hs (g r) (Hg r Hr))].
  - rewrite <- (dot_ext _ _ tK tK EK (equal_refl tK)), <- (dot_ext _ _ tV tV EV (equal_refl tV)).
    change (∑ s < batch, ∑ r < h, ⟨dO.[s].[r], tattention (M s r) scale Q.[s].[r] K.[s].[g r] V.[s].[g r] B.[s].[r]
      tQ.[s].[r] tK.[s].[g r] tV.[s].[g r]⟩ = (∑ s < batch, ∑ r < h, ⟨scale • (dS s r × K.[s].[g r]), tQ.[s].[r]⟩) +
      (∑ s < batch, ∑ k < h_kv, ⟨collect h g (fun r => scale • ((dS s r)^T × Q.[s].[r])) k, tK.[s].[k]⟩) +
      (∑ s < batch, ∑ k < h_kv, ⟨collect h g (fun r => (P s r)^T × dO.[s].[r]) k, tV.[s].[k]⟩)).
    rewrite <- sum_plus3. apply sum_ext; intros s _.
    rewrite <- (dot_collect g (fun r => scale • ((dS s r)^T × Q.[s].[r])) tK.[s] Hg),
      <- (dot_collect g (fun r => (P s r)^T × dO.[s].[r]) tV.[s] Hg).
    rewrite <- sum_plus3. apply sum_ext; intros r _. apply tattention_adjoint.
Qed.

(** A projection, split into heads. *)
Lemma projection_moves {batch n m h d} (x : R -> tensor [batch; n; m]) (w : R -> tensor [m; (h * d)%nat])
    (b : R -> tensor [(h * d)%nat]) t tX tW tb :
  moves x t tX -> moves w t tW -> moves b t tb ->
  moves (s := [batch; h; n; d]) (fun u s => split (linear (x u).[s] (w u) (b u))) t
    (fun s => split (tlinear (x t).[s] (w t) tX.[s] tW tb)).
Proof.
  intros HX HW Hb s Hs. apply (split_moves (fun u => linear (x u).[s] (w u) (b u))).
  exact (linear_moves (fun u => (x u).[s]) w b t tX.[s] tW tb (HX s Hs) HW Hb).
Qed.

Lemma projection_adjoint {batch n m h d} (A : tensor [batch; h; n; d]) (X : tensor [batch; n; m])
    (W : tensor [m; (h * d)%nat]) (tX : tensor [batch; n; m]) (tW : tensor [m; (h * d)%nat]) (tb : tensor [(h * d)%nat])
    :
  dot (s := [batch; h; n; d]) A (fun s => split (tlinear X.[s] W tX.[s] tW tb)) =
    dot (s := [batch; n; m]) (fun s => merge A.[s] × W^T) tX +
    dot (s := [m; (h * d)%nat]) (fun a c => ∑ s < batch, (X.[s]^T × merge A.[s]) a c) tW +
    dot (s := [(h * d)%nat]) (fun c => ∑ s < batch, ∑ i < n, merge A.[s] i c) tb.
Proof.
  rewrite <- (batch_adjoint (fun s => merge A.[s])). apply sum_ext; intros s _.
  exact (dot_split A.[s] (tlinear X.[s] W tX.[s] tW tb)).
Qed.

(** From the layer's output to the heads' outputs and the output matrix. *)
Lemma concat_derive {batch n_q h d_v d_y} (O : tensor [batch; h; n_q; d_v]) (W_O : tensor [(h * d_v)%nat; d_y])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  gradient ℓ (fun s => linear (merge O.[s]) W_O b_O) dY ->
  gradient3 (fun O W_O b_O => ℓ (fun s => linear (merge O.[s]) W_O b_O)) O W_O b_O
    (fun s => split (dY.[s] × W_O^T)) (fun a c => ∑ s < batch, ((merge O.[s])^T × dY.[s]) a c)
    (fun c => ∑ s < batch, ∑ i < n_q, dY.[s] i c).
Proof.
  intros Hℓ o w b t tO tW tb HO HW Hb tHO tHW tHb. eapply derive_eq.
  - apply (Hℓ (fun u s => linear (merge (o u).[s]) (w u) (b u)) t
    (fun s => tlinear (merge O.[s]) W_O (merge tO.[s]) tW tb)).
    + now rewrite HO, HW, Hb.
    + intros s Hs. rewrite <- HO, <- HW.
      exact (linear_moves (fun u => merge (o u).[s]) w b t _ _ _
        (merge_moves (fun u => (o u).[s]) t _ (tHO s Hs)) tHW tHb).
  - etransitivity; [apply (batch_adjoint dY (fun s => merge O.[s]) W_O (fun s => merge tO.[s]))|].
    f_equal. f_equal. apply sum_ext; intros s _. exact (dot_merge (dY.[s] × W_O^T) tO.[s]).
Qed.

Lemma dot_add3 {b m n} (A B T : tensor [b; m; n]) : dot (s := [b; m; n]) (fun s => A.[s] ⊕ B.[s]) T = ⟨A, T⟩ + ⟨B, T⟩.
Proof. symmetry. etransitivity; [symmetry; apply sum_plus|]. apply sum_ext;
  intros s _. symmetry. apply (dot_add_l A.[s] B.[s] T.[s]). Qed.

(** What stands still. *)
Definition rest {s} (A : tensor s) : R -> tensor s := fun _ => A.

Lemma rest_moves {s} (A : tensor s) t : moves (rest A) t zero.
Proof. exact (moves_const A t). Qed.

(** ** The whole layer: everything moves at once *)

Section layer.
  Context {batch n_q n_k d_x d_m d_k d_v d_y : nat} (h h_kv : nat) (g : nat -> nat)
  (M : nat -> nat -> mask) (scale : R).
  Context (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m]).
  Context (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h_kv * d_k)%nat])
  (W_V : tensor [d_m; (h_kv * d_v)%nat]).
  Context (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q : tensor [(h * d_k)%nat]) (b_K : tensor [(h_kv * d_k)%nat]).
  Context (b_V : tensor [(h_kv * d_v)%nat]) (b_O : tensor [d_y]).
  Context (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]).

  Let Q : tensor [batch; h; n_q; d_k] := fun s => split (linear X.[s] W_Q b_Q).
  Let K : tensor [batch; h_kv; n_k; d_k] := fun s => split (linear X_mem.[s] W_K b_K).
  Let V : tensor [batch; h_kv; n_k; d_v] := fun s => split (linear X_mem.[s] W_V b_V).
  Let O : tensor [batch; h; n_q; d_v] := fun s => heads g (M s) scale Q.[s] K.[s] V.[s] B.[s].
  Let P := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[g r] B.[s].[r].
  Let dO : tensor [batch; h; n_q; d_v] := fun s => split (dY.[s] × W_O^T).
  Let dS := fun s r => centered (P s r) (dO.[s].[r] × V.[s].[g r]^T).
  Let dQ : tensor [batch; h; n_q; d_k] := fun s r => scale • (dS s r × K.[s].[g r]).
  Context (dK : tensor [batch; h_kv; n_k; d_k]) (dV : tensor [batch; h_kv; n_k; d_v]).
  Hypothesis Hg : forall r, (r < h)%nat -> (g r < h_kv)%nat.
  Hypothesis EK : equal (s := [batch; h_kv; n_k; d_k])
    (fun s => collect h g (fun r => scale • ((dS s r)^T × Q.[s].[r]))) dK.
  Hypothesis EV : equal (s := [batch; h_kv; n_k; d_v]) (fun s => collect h g (fun r => (P s r)^T × dO.[s].[r])) dV.
  Hypothesis Hℓ : gradient ℓ (layer h h_kv g M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) dY.

  Lemma layer_derive x x_mem w_Q w_K w_V w_O c_Q c_K c_V c_O t tX tX_mem tW_Q tW_K tW_V tW_O tb_Q tb_K tb_V tb_O :
    x t = X -> x_mem t = X_mem -> w_Q t = W_Q -> w_K t = W_K -> w_V t = W_V -> w_O t = W_O ->
    c_Q t = b_Q -> c_K t = b_K -> c_V t = b_V -> c_O t = b_O ->
    moves x t tX -> moves x_mem t tX_mem -> moves w_Q t tW_Q -> moves w_K t tW_K -> moves w_V t tW_V ->
      moves w_O t tW_O ->
    moves c_Q t tb_Q -> moves c_K t tb_K -> moves c_V t tb_V -> moves c_O t tb_O ->
    is_derive (fun u => ℓ (layer h h_kv g M scale B (x u) (x_mem u) (w_Q u) (w_K u) (w_V u) (w_O u) (c_Q u) (c_K u)
      (c_V u) (c_O u))) t
      (dot (s := [batch; n_q; d_x]) (fun s => merge dQ.[s] × W_Q^T) tX +
       dot (s := [d_x; (h * d_k)%nat]) (fun a c => ∑ s < batch, (X.[s]^T × merge dQ.[s]) a c) tW_Q +
       dot (s := [(h * d_k)%nat]) (fun c => ∑ s < batch, ∑ i < n_q, merge dQ.[s] i c) tb_Q +
       (dot (s := [batch; n_k; d_m]) (fun s => merge dK.[s] × W_K^T) tX_mem +
       dot (s := [d_m; (h_kv * d_k)%nat]) (fun a c => ∑ s < batch, (X_mem.[s]^T × merge dK.[s]) a c) tW_K +
       dot (s := [(h_kv * d_k)%nat]) (fun c => ∑ s < batch, ∑ i < n_k, merge dK.[s] i c) tb_K) +
       (dot (s := [batch; n_k; d_m]) (fun s => merge dV.[s] × W_V^T) tX_mem +
       dot (s := [d_m; (h_kv * d_v)%nat]) (fun a c => ∑ s < batch, (X_mem.[s]^T × merge dV.[s]) a c) tW_V +
       dot (s := [(h_kv * d_v)%nat]) (fun c => ∑ s < batch, ∑ i < n_k, merge dV.[s] i c) tb_V) +
       dot (s := [(h * d_v)%nat; d_y]) (fun a c => ∑ s < batch, ((merge O.[s])^T × dY.[s]) a c) tW_O +
       dot (s := [d_y]) (fun c => ∑ s < batch, ∑ i < n_q, dY.[s] i c) tb_O).
  Proof.
    intros HX Hm HQ HK HV HO HbQ HbK HbV HbO tHX tHm tHQ tHK tHV tHO tHbQ tHbK tHbV tHbO.
    pose (q := fun u : R => (fun s => split (linear (x u).[s] (w_Q u) (c_Q u))) : tensor [batch; h; n_q; d_k]).
    pose (k := fun u : R => (fun s => split (linear (x_mem u).[s] (w_K u) (c_K u))) : tensor [batch; h_kv; n_k; d_k]).
    pose (v := fun u : R => (fun s => split (linear (x_mem u).[s] (w_V u) (c_V u))) : tensor [batch; h_kv; n_k; d_v]).
    assert (Eq : q t = Q) by (unfold q; now rewrite HX, HQ, HbQ).
    assert (Ek : k t = K) by (unfold k; now rewrite Hm, HK, HbK).
    assert (Ev : v t = V) by (unfold v; now rewrite Hm, HV, HbV).
    pose proof (projection_moves x w_Q c_Q t tX tW_Q tb_Q tHX tHQ tHbQ) as Mq. fold q in Mq.
    pose proof (projection_moves x_mem w_K c_K t tX_mem tW_K tb_K tHm tHK tHbK) as Mk. fold k in Mk.
    pose proof (projection_moves x_mem w_V c_V t tX_mem tW_V tb_V tHm tHV tHbV) as Mv. fold v in Mv.
    rewrite HX, HQ in Mq. rewrite Hm, HK in Mk. rewrite Hm, HV in Mv.
    (* the loss of Q, K, V, W_O and b_O along these curves: the outputs of the heads, then what they are for *)
    pose (to := fun s r => tattention (M s r) scale Q.[s].[r] K.[s].[g r] V.[s].[g r] B.[s].[r]
      (split (tlinear X.[s] W_Q tX.[s] tW_Q tb_Q)).[r] (split (tlinear X_mem.[s] W_K tX_mem.[s] tW_K tb_K)).[g r]
      (split (tlinear X_mem.[s] W_V tX_mem.[s] tW_V tb_V)).[g r]).
    assert (Mo : moves (s := [batch; h; n_q; d_v])
      (fun u s => heads g (M s) scale (q u).[s] (k u).[s] (v u).[s] B.[s]) t to).
    { intros s Hs r Hr. unfold to. rewrite <- Eq, <- Ek, <- Ev.
      apply (tattention_moves (M s r) scale (fun u => (q u).[s].[r]) (fun u => (k u).[s].[g r])
        (fun u => (v u).[s].[g r]));
        [exact (Mq s Hs r Hr)|exact (Mk s Hs (g r) (Hg r Hr))|exact (Mv s Hs (g r) (Hg r Hr))]. }
    eapply derive_eq.
    - apply (concat_derive O W_O b_O ℓ dY Hℓ (fun u s => heads g (M s) scale (q u).[s] (k u).[s] (v u).[s] B.[s]) w_O
      c_O t to tW_O tb_O);
        [now rewrite Eq, Ek, Ev|exact HO|exact HbO|exact Mo|exact tHO|exact tHbO].
    - f_equal. f_equal. fold dO.
      (* ⟨dO, tO⟩, taken apart by the rule of the heads with the loss ⟨dO, ·⟩ *)
      assert (D : is_derive (fun u => dot (s := [batch; h; n_q; d_v]) dO
        (fun s => heads g (M s) scale (q u).[s] (k u).[s] (v u).[s] B.[s])) t
        (dot (s := [batch; h; n_q; d_v]) dO to)).
      { exact (gradient_dot dO _ (fun u s => heads g (M s) scale (q u).[s] (k u).[s] (v u).[s] B.[s]) t
        to eq_refl Mo). }
      pose proof (heads_derive g M scale B Q K V (fun O => ⟨dO, O⟩) dO dK dV Hg EK EV (gradient_dot dO _) q k v t _ _ _
        Eq Ek Ev Mq Mk Mv) as D'.
      apply is_derive_unique in D, D'. rewrite <- D. etransitivity; [exact D'|].
      now rewrite !projection_adjoint.
  Qed.

  Ltac alone H :=
    eapply derive_eq; [apply H; try reflexivity; try assumption; apply rest_moves|rewrite !dot_zero].

  (** One input moves, the others stand still. *)
  Lemma layer_gradients :
    let Y := fun X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O => ℓ
      (layer h h_kv g M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) in
    (gradient (s := [batch; n_q; d_x]) (fun X => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) X
      (fun s => merge dQ.[s] × W_Q^T) /\
     gradient (s := [d_x; (h * d_k)%nat]) (fun W_Q => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) W_Q
       (fun a c => ∑ s < batch, (X.[s]^T × merge dQ.[s]) a c) /\
     gradient (s := [(h * d_k)%nat]) (fun b_Q => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) b_Q
       (fun c => ∑ s < batch, ∑ i < n_q, merge dQ.[s] i c)) /\
    (gradient (s := [batch; n_k; d_m]) (fun X_mem => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) X_mem
      (fun s => merge dK.[s] × W_K^T ⊕ merge dV.[s] × W_V^T) /\
     gradient (s := [d_m; (h_kv * d_k)%nat]) (fun W_K => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) W_K
       (fun a c => ∑ s < batch, (X_mem.[s]^T × merge dK.[s]) a c) /\
     gradient (s := [(h_kv * d_k)%nat]) (fun b_K => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) b_K
       (fun c => ∑ s < batch, ∑ j < n_k, merge dK.[s] j c) /\
     gradient (s := [d_m; (h_kv * d_v)%nat]) (fun W_V => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) W_V
       (fun a c => ∑ s < batch, (X_mem.[s]^T × merge dV.[s]) a c) /\
     gradient (s := [(h_kv * d_v)%nat]) (fun b_V => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) b_V
       (fun c => ∑ s < batch, ∑ j < n_k, merge dV.[s] j c)) /\
    (gradient (s := [(h * d_v)%nat; d_y]) (fun W_O => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) W_O
      (fun a c => ∑ s < batch, ((merge O.[s])^T × dY.[s]) a c) /\
     gradient (s := [d_y]) (fun b_O => Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) b_O
       (fun c => ∑ s < batch, ∑ i < n_q, dY.[s] i c)).
  Proof.
    intro Y. unfold Y. refine (conj (conj _ (conj _ _)) (conj (conj _ (conj _ (conj _ (conj _ _)))) (conj _ _)));
      intros x t tX Hx Ht.
    - alone (layer_derive x (rest X_mem) (rest W_Q) (rest W_K) (rest W_V) (rest W_O) (rest b_Q) (rest b_K)
      (rest b_V) (rest b_O)
        t tX zero zero zero zero zero zero zero zero zero). ring.
    - alone (layer_derive (rest X) (rest X_mem) x (rest W_K) (rest W_V) (rest W_O) (rest b_Q) (rest b_K)
      (rest b_V) (rest b_O)
        t zero zero tX zero zero zero zero zero zero zero). ring.
    - alone (layer_derive (rest X) (rest X_mem) (rest W_Q) (rest W_K) (rest W_V) (rest W_O) x (rest b_K)
      (rest b_V) (rest b_O)
        t zero zero zero zero zero zero tX zero zero zero). ring.
    - alone (layer_derive (rest X) x (rest W_Q) (rest W_K) (rest W_V) (rest W_O) (rest b_Q) (rest b_K)
      (rest b_V) (rest b_O)
        t zero tX zero zero zero zero zero zero zero zero).
      etransitivity; [|symmetry; apply (dot_add3 (fun s => merge dK.[s] × W_K^T)
        (fun s => merge dV.[s] × W_V^T) tX)]. ring.
    - alone (layer_derive (rest X) (rest X_mem) (rest W_Q) x (rest W_V) (rest W_O) (rest b_Q) (rest b_K)
      (rest b_V) (rest b_O)
        t zero zero zero tX zero zero zero zero zero zero). ring.
    - alone (layer_derive (rest X) (rest X_mem) (rest W_Q) (rest W_K) (rest W_V) (rest W_O) (rest b_Q) x
      (rest b_V) (rest b_O)
        t zero zero zero zero zero zero zero tX zero zero). ring.
    - alone (layer_derive (rest X) (rest X_mem) (rest W_Q) (rest W_K) x (rest W_O) (rest b_Q) (rest b_K)
      (rest b_V) (rest b_O)
        t zero zero zero zero tX zero zero zero zero zero). ring.
    - alone (layer_derive (rest X) (rest X_mem) (rest W_Q) (rest W_K) (rest W_V) (rest W_O) (rest b_Q)
      (rest b_K) x (rest b_O)
        t zero zero zero zero zero zero zero zero tX zero). ring.
    - alone (layer_derive (rest X) (rest X_mem) (rest W_Q) (rest W_K) (rest W_V) x (rest b_Q) (rest b_K)
      (rest b_V) (rest b_O)
        t zero zero zero zero zero tX zero zero zero zero). ring.
    - alone (layer_derive (rest X) (rest X_mem) (rest W_Q) (rest W_K) (rest W_V) (rest W_O) (rest b_Q)
      (rest b_K) (rest b_V) x
        t zero zero zero zero zero zero zero zero zero tX). ring.
  Qed.

  (** Both inputs move. *)
  Lemma layer_inputs :
    gradient2 (s := [batch; n_q; d_x]) (r := [batch; n_k; d_m])
      (fun X X_mem => ℓ (layer h h_kv g M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X X_mem
      (fun s => merge dQ.[s] × W_Q^T) (fun s => merge dK.[s] × W_K^T ⊕ merge dV.[s] × W_V^T).
  Proof.
    intros x y t tX tY Hx Hy Ht HtY.
    alone (layer_derive x y (rest W_Q) (rest W_K) (rest W_V) (rest W_O) (rest b_Q) (rest b_K) (rest b_V) (rest b_O)
        t tX tY zero zero zero zero zero zero zero zero).
    etransitivity; [|symmetry; apply Rplus_eq_compat_l;
      apply (dot_add3 (fun s => merge dK.[s] × W_K^T) (fun s => merge dV.[s] × W_V^T) tY)]. ring.
  Qed.
End layer.

(** The same array in both places: the gradients add. *)
Lemma fan_out {b m n} (ℓ : tensor [b; m; n] -> tensor [b; m; n] -> R) (X dA dB : tensor [b; m; n]) :
  gradient2 ℓ X X dA dB -> gradient (fun X => ℓ X X) X (fun s => dA.[s] ⊕ dB.[s]).
Proof.
  intros H x t tX Hx Ht. eapply derive_eq; [apply (H x x t tX tX Hx Hx Ht Ht)|]. symmetry. apply (dot_add3 dA dB tX).
Qed.

(** ** The chapter's theorems *)


(** Cut the columns of Q and K into h blocks: the wide head's scores are the sum of the narrow heads' scores. *)
Theorem eq_heads_add_scores n_q n_k h d (Q : tensor [n_q; (h * d)%nat]) (K : tensor [n_k; (h * d)%nat]) i j :
  (Q × K^T) i j = ∑ r < h, ((split Q).[r] × (split K).[r]^T) i j.
Proof. apply sum_mul. Qed.

(** Column l of head r is column r·d + l of the packed array; merge puts it back. *)
Theorem eq_split_heads n h d (T : tensor [n; (h * d)%nat]) :
  (forall r i l, (split T).[r] i l = T i (r * d + l)%nat) /\ equal (merge (split T)) T.
Proof.
  split; [reflexivity|]. intros i _ c Hc. destruct (block_of h d c Hc) as (_ & _ & Hb). simpl.
  unfold merge, split. now rewrite Hb.
Qed.

(** Merge is the way back: column r·d + l of the packed array is column l of head r, and split undoes it. *)
Theorem eq_merge_heads n h d (T : tensor [h; n; d]) :
  (forall r i l, (l < d)%nat -> merge T i (r * d + l)%nat = T r i l) /\ equal (split (merge T)) T.
Proof.
  assert (H : forall r i l, (l < d)%nat -> merge T i (r * d + l)%nat = T r i l).
  { intros r i l Hl. unfold merge. now rewrite div_block, mod_block. }
  split; [exact H|]. intros r _ i _ l Hl. exact (H r i l Hl).
Qed.

(** The gradient of a split is the merge of the gradient, and the other way round. *)
Theorem eq_split_merge_vjp n h d :
  (forall (T : tensor [n; (h * d)%nat]) (ℓ : tensor [h; n; d] -> R) (dT' : tensor [h; n; d]),
     gradient ℓ (split T) dT' -> gradient (fun T => ℓ (split T)) T (merge dT')) /\
  (forall (T : tensor [h; n; d]) (ℓ : tensor [n; (h * d)%nat] -> R) (dT' : tensor [n; (h * d)%nat]),
     gradient ℓ (merge T) dT' -> gradient (fun T => ℓ (merge T)) T (split dT')).
Proof.
  split; intros T ℓ dT'.
  - apply (backward (split (n := n) (h := h) (d := d)) T split); [intros; now apply split_moves|apply dot_split].
  - apply (backward (merge (n := n) (h := h) (d := d)) T merge); [intros; now apply merge_moves|apply dot_merge].
Qed.

(** Y = C W_O + b_O for every sequence: the weights and the bias collect from all tokens of all sequences. *)
Theorem eq_concat_vjp batch n_q w d_y (C : tensor [batch; n_q; w]) (W_O : tensor [w; d_y]) (b_O : tensor [d_y])
    (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  gradient ℓ (fun s => C.[s] × W_O ⊕ rows b_O) dY ->
  gradient (fun C => ℓ (fun s => C.[s] × W_O ⊕ rows b_O)) C (fun s => dY.[s] × W_O^T) /\
  gradient (fun W_O => ℓ (fun s => C.[s] × W_O ⊕ rows b_O)) W_O (fun a c => ∑ s < batch, (C.[s]^T × dY.[s]) a c) /\
  gradient (fun b_O => ℓ (fun s => C.[s] × W_O ⊕ rows b_O)) b_O (fun c => ∑ s < batch, ∑ i < n_q, dY.[s] i c).
Proof.
  intro Hℓ. apply (gradient3_each (fun C W_O b_O => ℓ (fun s => linear C.[s] W_O b_O)) C W_O b_O).
  intros x w' b t tX tW tb HX HW Hb tHX tHW tHb. eapply derive_eq.
  - apply (Hℓ (fun u s => linear (x u).[s] (w' u) (b u)) t (fun s => tlinear C.[s] W_O tX.[s] tW tb)).
    + now rewrite HX, HW, Hb.
    + intros s Hs. rewrite <- HX, <- HW. exact (linear_moves (fun u => (x u).[s]) w' b t _ _ _ (tHX s Hs) tHW tHb).
  - apply batch_adjoint.
Qed.

Lemma dot_sum_r {m n} h (A : tensor [m; n]) (F : nat -> tensor [m; n]) :
  dot (s := [m; n]) A (fun i j => ∑ r < h, F r i j) = ∑ r < h, ⟨A, F r⟩.
Proof.
  simpl. symmetry. rewrite sum_swap. apply sum_ext; intros i _. rewrite sum_swap. apply sum_ext;
    intros j _. now rewrite sum_l.
Qed.

(** A row of blocks times a column of blocks is a sum over the heads. *)
Lemma merge_matmul {n h d m} (A : tensor [h; n; d]) (W : tensor [(h * d)%nat; m]) i c :
  (merge A × W) i c = ∑ r < h, (A.[r] × rows_of W r) i c.
Proof.
  unfold matmul at 1. rewrite sum_mul. apply sum_ext; intros r _. apply sum_ext; intros l Hl.
  unfold merge, part, rows_of. now rewrite div_block, mod_block.
Qed.

(** Nobody needs the concatenation: each head goes through its own rows of W_O, and the results add up. *)
Theorem eq_concat_sum n_q h d_v d_y (O : tensor [h; n_q; d_v]) (W_O : tensor [(h * d_v)%nat; d_y]) (b_O : tensor [d_y])
    i c :
  (merge O × W_O ⊕ rows b_O) i c = (∑ r < h, (O.[r] × rows_of W_O r) i c) + b_O c.
Proof. unfold add, rows. now rewrite merge_matmul. Qed.

(** Every head sees the whole dY, through its own rows of W_O. The rows of dW_O that belong to head r are O_rᵀ dY. *)
Theorem eq_concat_head_vjp batch n_q h d_v d_y (O : tensor [batch; h; n_q; d_v]) (W_O : tensor [(h * d_v)%nat; d_y])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let dW_O : tensor [(h * d_v)%nat; d_y] := fun a c => ∑ s < batch, ((merge O.[s])^T × dY.[s]) a c in
  gradient ℓ (fun s => merge O.[s] × W_O ⊕ rows b_O) dY ->
  gradient (fun O => ℓ (fun s => merge O.[s] × W_O ⊕ rows b_O)) O (fun s r => dY.[s] × (rows_of W_O r)^T) /\
  gradient (fun W_O => ℓ (fun s => merge O.[s] × W_O ⊕ rows b_O)) W_O dW_O /\
  forall r l c, (l < d_v)%nat -> rows_of dW_O r l c = ∑ s < batch, (O.[s].[r]^T × dY.[s]) l c.
Proof.
  intros dW_O Hℓ. destruct (gradient3_each _ _ _ _ _ _ _ (concat_derive O W_O b_O ℓ dY Hℓ)) as (HO & HW & _).
  refine (conj HO (conj HW _)). intros r l c Hl. apply sum_ext; intros s _. apply sum_ext; intros i _.
  unfold transpose, merge, part. now rewrite div_block, mod_block.
Qed.


Lemma centered_as_rowsum {m n} (P X : tensor [m; n]) : centered P X = (fun i j => P i j * (X i j - rowsum (X ∘ P) i)).
Proof.
  apply functional_extensionality; intro i. apply functional_extensionality; intro j.
  unfold centered, rowsum, hadamard. simpl. f_equal. f_equal. apply sum_ext; intros. ring.
Qed.

Lemma own_lt h r : (r < h)%nat -> (own r < h)%nat.
Proof. trivial. Qed.

Lemma collect_own_batch {b h n d} (A : nat -> nat -> tensor [n; d]) : equal (s := [b; h; n; d])
  (fun s => collect h own (A s)) A.
Proof. intros s _. apply collect_own. Qed.

(** Each head runs the six lines of chapter 4 on its own share; no head looks at another. *)
Theorem eq_head_vjp batch h n_q n_k d_k d_v (M : nat -> nat -> mask) scale (B : tensor [batch; h; n_q; n_k])
    (Q : tensor [batch; h; n_q; d_k]) (K : tensor [batch; h; n_k; d_k]) (V : tensor [batch; h; n_k; d_v])
    (ℓ : tensor [batch; h; n_q; d_v] -> R) (dO : tensor [batch; h; n_q; d_v]) :
  let O (Q : tensor [batch; h; n_q; d_k]) (K : tensor [batch; h; n_k; d_k]) (V : tensor [batch; h; n_k; d_v]) s r :=
    attention (M s r) scale Q.[s].[r] K.[s].[r] V.[s].[r] B.[s].[r] in
  let P : tensor [batch; h; n_q; n_k] := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[r] B.[s].[r] in
  let dP : tensor [batch; h; n_q; n_k] := fun s r => dO.[s].[r] × V.[s].[r]^T in
  let D : tensor [batch; h; n_q] := fun s r => rowsum (dP.[s].[r] ∘ P.[s].[r]) in
  let dS : tensor [batch; h; n_q; n_k] := fun s r i j => P s r i j * (dP s r i j - D s r i) in
  gradient ℓ (O Q K V) dO ->
  gradient (fun V => ℓ (O Q K V)) V (fun s r => P.[s].[r]^T × dO.[s].[r]) /\
  gradient (fun Q => ℓ (O Q K V)) Q (fun s r => scale • (dS.[s].[r] × K.[s].[r])) /\
  gradient (fun K => ℓ (O Q K V)) K (fun s r => scale • (dS.[s].[r]^T × Q.[s].[r])).
Proof.
  intros O P dP D dS Hℓ.
  assert (E : dS = fun s r => centered P.[s].[r] dP.[s].[r]).
  { apply functional_extensionality; intro s. apply functional_extensionality; intro r.
    symmetry. apply centered_as_rowsum. }
  rewrite E. destruct (gradient3_each _ _ _ _ _ _ _ (heads_derive own M scale B Q K V ℓ dO _ _ (own_lt h)
    (collect_own_batch _) (collect_own_batch _) Hℓ)) as (HQ & HK & HV). exact (conj HV (conj HQ HK)).
Qed.

(** Each projection is a linear map: a weight's gradient is its input, transposed, times what arrives; a bias collects
    the rows. ℓ may be any function of the queries, keys and values. *)
Theorem eq_multi_head_projections batch n_q n_k d_x d_m w_k w_v (X : tensor [batch; n_q; d_x])
    (X_mem : tensor [batch; n_k; d_m]) (W_Q : tensor [d_x; w_k]) (W_K : tensor [d_m; w_k]) (W_V : tensor [d_m; w_v])
    (b_Q b_K : tensor [w_k]) (b_V : tensor [w_v])
    (ℓ : tensor [batch; n_q; w_k] -> tensor [batch; n_k; w_k] -> tensor [batch; n_k; w_v] -> R)
    (dQ : tensor [batch; n_q; w_k]) (dK : tensor [batch; n_k; w_k]) (dV : tensor [batch; n_k; w_v]) :
  let Q W_Q b_Q : tensor [batch; n_q; w_k] := fun s => X.[s] × W_Q ⊕ rows b_Q in
  let K W_K b_K : tensor [batch; n_k; w_k] := fun s => X_mem.[s] × W_K ⊕ rows b_K in
  let V W_V b_V : tensor [batch; n_k; w_v] := fun s => X_mem.[s] × W_V ⊕ rows b_V in
  gradient3 ℓ (Q W_Q b_Q) (K W_K b_K) (V W_V b_V) dQ dK dV ->
  gradient (fun W_Q => ℓ (Q W_Q b_Q) (K W_K b_K) (V W_V b_V)) W_Q (fun a c => ∑ s < batch, (X.[s]^T × dQ.[s]) a c) /\
  gradient (fun W_K => ℓ (Q W_Q b_Q) (K W_K b_K) (V W_V b_V)) W_K
    (fun a c => ∑ s < batch, (X_mem.[s]^T × dK.[s]) a c) /\
  gradient (fun W_V => ℓ (Q W_Q b_Q) (K W_K b_K) (V W_V b_V)) W_V
    (fun a c => ∑ s < batch, (X_mem.[s]^T × dV.[s]) a c) /\
  gradient (fun b_Q => ℓ (Q W_Q b_Q) (K W_K b_K) (V W_V b_V)) b_Q (fun c => ∑ s < batch, ∑ i < n_q, dQ.[s] i c) /\
  gradient (fun b_K => ℓ (Q W_Q b_Q) (K W_K b_K) (V W_V b_V)) b_K (fun c => ∑ s < batch, ∑ j < n_k, dK.[s] j c) /\
  gradient (fun b_V => ℓ (Q W_Q b_Q) (K W_K b_K) (V W_V b_V)) b_V (fun c => ∑ s < batch, ∑ j < n_k, dV.[s] j c).
Proof.
  intros Q K V H. destruct (gradient3_each _ _ _ _ _ _ _ H) as (HQ & HK & HV).
  pose proof (eq_concat_vjp _ _ _ _ X W_Q b_Q (fun Q => ℓ Q (K W_K b_K) (V W_V b_V)) dQ HQ) as (_ & H1 & H2).
  pose proof (eq_concat_vjp _ _ _ _ X_mem W_K b_K (fun K => ℓ (Q W_Q b_Q) K (V W_V b_V)) dK HK) as (_ & H3 & H4).
  pose proof (eq_concat_vjp _ _ _ _ X_mem W_V b_V (fun V => ℓ (Q W_Q b_Q) (K W_K b_K) V) dV HV) as (_ & H5 & H6).
  tauto.
Qed.

(** Packed gradients are the heads' gradients, side by side: the columns of Xᵀ dQ that belong to head r are Xᵀ dQ_r.
    *)
Theorem packed_gradients_are_side_by_side n m h d (X : tensor [n; m]) (dQ : tensor [h; n; d]) r a l :
  (l < d)%nat -> columns (X^T × merge dQ) r a l = (X^T × dQ.[r]) a l.
Proof.
  intro Hl. apply sum_ext; intros i _. unfold merge, part. now rewrite div_block, mod_block.
Qed.

(** The packed product is the sum over the heads, each through its own columns. *)
Lemma merge_columns {n h d m} (A : tensor [h; n; d]) (W : tensor [m; (h * d)%nat]) i a :
  (merge A × W^T) i a = ∑ r < h, (A.[r] × (columns W r)^T) i a.
Proof. exact (merge_matmul A W^T i a). Qed.

(** X made the queries of all heads, the memory made their keys and values: each head sends its gradient back through
    its own columns, and all of them add. ℓ may be any function of the heads' queries, keys and values. *)
Theorem eq_inputs_of_heads batch n_q n_k d_x d_m h d_k d_v (X : tensor [batch; n_q; d_x])
    (X_mem : tensor [batch; n_k; d_m]) (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h * d_k)%nat])
    (W_V : tensor [d_m; (h * d_v)%nat]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (ℓ : tensor [batch; h; n_q; d_k] -> tensor [batch; h; n_k; d_k] -> tensor [batch; h; n_k; d_v] -> R)
    (dQ : tensor [batch; h; n_q; d_k]) (dK : tensor [batch; h; n_k; d_k]) (dV : tensor [batch; h; n_k; d_v]) :
  let Q (X : tensor [batch; n_q; d_x]) s := split (X.[s] × W_Q ⊕ rows b_Q) in
  let K (X_mem : tensor [batch; n_k; d_m]) s := split (X_mem.[s] × W_K ⊕ rows b_K) in
  let V (X_mem : tensor [batch; n_k; d_m]) s := split (X_mem.[s] × W_V ⊕ rows b_V) in
  gradient3 ℓ (Q X) (K X_mem) (V X_mem) dQ dK dV ->
  gradient2 (fun X X_mem => ℓ (Q X) (K X_mem) (V X_mem)) X X_mem
    (fun s i a => ∑ r < h, (dQ.[s].[r] × (columns W_Q r)^T) i a)
    (fun s j a => ∑ r < h, ((dK.[s].[r] × (columns W_K r)^T) j a + (dV.[s].[r] × (columns W_V r)^T) j a)).
Proof.
  intros Q K V H x y t tX tY Hx Hy Ht HtY.
  pose proof (projection_moves x (fun _ => W_Q) (fun _ => b_Q) t tX zero zero Ht (moves_const _ _)
    (moves_const _ _)) as MQ.
  pose proof (projection_moves y (fun _ => W_K) (fun _ => b_K) t tY zero zero HtY (moves_const _ _)
    (moves_const _ _)) as MK.
  pose proof (projection_moves y (fun _ => W_V) (fun _ => b_V) t tY zero zero HtY (moves_const _ _)
    (moves_const _ _)) as MV.
  eapply derive_eq.
  - apply (H (fun u => Q (x u)) (fun u => K (y u)) (fun u => V (y u)) t _ _ _ (f_equal Q Hx) (f_equal K Hy)
    (f_equal V Hy) MQ MK MV).
  - cbv beta. rewrite !projection_adjoint, !dot_zero, !Rplus_0_r, Rplus_assoc. f_equal.
    + apply dot_ext; [|apply equal_refl]. intros s _ i _ a _. apply merge_columns.
    + etransitivity; [symmetry; apply (dot_add3 (fun s => merge dK.[s] × W_K^T) (fun s => merge dV.[s] × W_V^T) tY)|].
      apply dot_ext; [|apply equal_refl]. intros s _ j _ a _. simpl. rewrite sum_plus. unfold add, part at 1 3.
      f_equal; apply merge_columns.
Qed.

(** In self-attention one array is used in three places in every head: the input collects over heads and paths. *)
Theorem eq_self_dX_heads batch n d h d_k d_v (X : tensor [batch; n; d]) (W_Q : tensor [d; (h * d_k)%nat])
    (W_K : tensor [d; (h * d_k)%nat]) (W_V : tensor [d; (h * d_v)%nat]) (b_Q b_K : tensor [(h * d_k)%nat])
    (b_V : tensor [(h * d_v)%nat])
    (ℓ : tensor [batch; h; n; d_k] -> tensor [batch; h; n; d_k] -> tensor [batch; h; n; d_v] -> R)
    (dQ dK : tensor [batch; h; n; d_k]) (dV : tensor [batch; h; n; d_v]) :
  let Q (X : tensor [batch; n; d]) s := split (X.[s] × W_Q ⊕ rows b_Q) in
  let K (X : tensor [batch; n; d]) s := split (X.[s] × W_K ⊕ rows b_K) in
  let V (X : tensor [batch; n; d]) s := split (X.[s] × W_V ⊕ rows b_V) in
  gradient3 ℓ (Q X) (K X) (V X) dQ dK dV ->
  gradient (fun X => ℓ (Q X) (K X) (V X)) X (fun s i a => ∑ r < h,
    ((dQ.[s].[r] × (columns W_Q r)^T) i a + (dK.[s].[r] × (columns W_K r)^T) i a +
    (dV.[s].[r] × (columns W_V r)^T) i a)).
Proof.
  intros Q K V H.
  pose proof (fan_out _ _ _ _ (eq_inputs_of_heads _ _ _ _ _ _ _ _ X X W_Q W_K W_V b_Q b_K b_V ℓ dQ dK dV H)) as G.
  refine (gradient_ext _ _ _ _ _ G). intros s _ i _ a _. simpl.
  etransitivity; [symmetry; apply (sum_plus h)|]. apply sum_ext; intros. ring.
Qed.

(** The whole backward pass of the layer, from dY to every weight, every bias and both inputs. Any masks, dead rows
    too. *)
Theorem eq_multi_head_vjp batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let Y := layer h h own M scale B in
  let Q : tensor [batch; h; n_q; d_k] := fun s => split (X.[s] × W_Q ⊕ rows b_Q) in
  let K : tensor [batch; h; n_k; d_k] := fun s => split (X_mem.[s] × W_K ⊕ rows b_K) in
  let V : tensor [batch; h; n_k; d_v] := fun s => split (X_mem.[s] × W_V ⊕ rows b_V) in
  let P : tensor [batch; h; n_q; n_k] := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[r] B.[s].[r] in
  let O_r : tensor [batch; h; n_q; d_v] := fun s r => P.[s].[r] × V.[s].[r] in
  let C : tensor [batch; n_q; (h * d_v)%nat] := fun s => merge O_r.[s] in
  let dC : tensor [batch; n_q; (h * d_v)%nat] := fun s => dY.[s] × W_O^T in
  let dO : tensor [batch; h; n_q; d_v] := fun s => split dC.[s] in
  let dP : tensor [batch; h; n_q; n_k] := fun s r => dO.[s].[r] × V.[s].[r]^T in
  let D : tensor [batch; h; n_q] := fun s r => rowsum (dP.[s].[r] ∘ P.[s].[r]) in
  let dS : tensor [batch; h; n_q; n_k] := fun s r i j => P s r i j * (dP s r i j - D s r i) in
  let dQ_r : tensor [batch; h; n_q; d_k] := fun s r => scale • (dS.[s].[r] × K.[s].[r]) in
  let dK_r : tensor [batch; h; n_k; d_k] := fun s r => scale • (dS.[s].[r]^T × Q.[s].[r]) in
  let dV_r : tensor [batch; h; n_k; d_v] := fun s r => P.[s].[r]^T × dO.[s].[r] in
  let dQ : tensor [batch; n_q; (h * d_k)%nat] := fun s => merge dQ_r.[s] in
  let dK : tensor [batch; n_k; (h * d_k)%nat] := fun s => merge dK_r.[s] in
  let dV : tensor [batch; n_k; (h * d_v)%nat] := fun s => merge dV_r.[s] in
  gradient ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) dY ->
  (gradient (fun X => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X (fun s => dQ.[s] × W_Q^T) /\
   gradient (fun W_Q => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_Q
     (fun a c => ∑ s < batch, (X.[s]^T × dQ.[s]) a c) /\
   gradient (fun b_Q => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_Q
     (fun c => ∑ s < batch, ∑ i < n_q, dQ.[s] i c)) /\
  (gradient (fun X_mem => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X_mem
    (fun s => dK.[s] × W_K^T ⊕ dV.[s] × W_V^T) /\
   gradient (fun W_K => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_K
     (fun a c => ∑ s < batch, (X_mem.[s]^T × dK.[s]) a c) /\
   gradient (fun b_K => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_K
     (fun c => ∑ s < batch, ∑ j < n_k, dK.[s] j c) /\
   gradient (fun W_V => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_V
     (fun a c => ∑ s < batch, (X_mem.[s]^T × dV.[s]) a c) /\
   gradient (fun b_V => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_V
     (fun c => ∑ s < batch, ∑ j < n_k, dV.[s] j c)) /\
  (gradient (fun W_O => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_O
    (fun a c => ∑ s < batch, (C.[s]^T × dY.[s]) a c) /\
   gradient (fun b_O => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_O
     (fun c => ∑ s < batch, ∑ i < n_q, dY.[s] i c)).
Proof.
  intros Y Q K V P O_r C dC dO dP D dS dQ_r dK_r dV_r dQ dK dV Hℓ.
  assert (E : dS = fun s r => centered P.[s].[r] dP.[s].[r]).
  { apply functional_extensionality; intro s. apply functional_extensionality; intro r.
    symmetry. apply centered_as_rowsum. }
  unfold dQ, dK, dQ_r, dK_r. rewrite E.
  exact (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ (own_lt h)
    (collect_own_batch _) (collect_own_batch _) Hℓ).
Qed.

(** h query heads share h_kv key heads, neighbours together. A shared head collects a sum over its group, never a
    mean. *)
Theorem eq_head_groups_vjp batch h h_kv n_q n_k d_k d_v (M : nat -> nat -> mask) scale (B : tensor [batch; h; n_q; n_k])
    (Q : tensor [batch; h; n_q; d_k]) (K : tensor [batch; h_kv; n_k; d_k]) (V : tensor [batch; h_kv; n_k; d_v])
    (ℓ : tensor [batch; h; n_q; d_v] -> R) (dO : tensor [batch; h; n_q; d_v]) :
  let g := fun r => (r * h_kv / h)%nat in
  let O (Q : tensor [batch; h; n_q; d_k]) (K : tensor [batch; h_kv; n_k; d_k])
    (V : tensor [batch; h_kv; n_k; d_v]) s r :=
    attention (M s r) scale Q.[s].[r] K.[s].[g r] V.[s].[g r] B.[s].[r] in
  let P : tensor [batch; h; n_q; n_k] := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[g r] B.[s].[r] in
  let dP : tensor [batch; h; n_q; n_k] := fun s r => dO.[s].[r] × V.[s].[g r]^T in
  let D : tensor [batch; h; n_q] := fun s r => rowsum (dP.[s].[r] ∘ P.[s].[r]) in
  let dS : tensor [batch; h; n_q; n_k] := fun s r i j => P s r i j * (dP s r i j - D s r i) in
  (0 < h_kv)%nat ->
  gradient ℓ (O Q K V) dO ->
  gradient (fun K => ℓ (O Q K V)) K (fun s k j l => ∑ r < h,
    if (g r =? k)%nat then (scale • (dS.[s].[r]^T × Q.[s].[r])) j l else 0) /\
  gradient (fun V => ℓ (O Q K V)) V (fun s k j l => ∑ r < h,
    if (g r =? k)%nat then (P.[s].[r]^T × dO.[s].[r]) j l else 0) /\
  gradient (fun Q => ℓ (O Q K V)) Q (fun s r => scale • (dS.[s].[r] × K.[s].[g r])).
Proof.
  intros g O P dP D dS Hkv Hℓ.
  assert (Hg : forall r, (r < h)%nat -> (g r < h_kv)%nat).
  { intros r Hr. unfold g. apply Nat.div_lt_upper_bound; [lia|]. nia. }
  assert (E : dS = fun s r => centered P.[s].[r] dP.[s].[r]).
  { apply functional_extensionality; intro s. apply functional_extensionality; intro r.
    symmetry. apply centered_as_rowsum. }
  rewrite E. destruct (gradient3_each _ _ _ _ _ _ _ (heads_derive g M scale B Q K V ℓ dO _ _ Hg
    (equal_refl _) (equal_refl _) Hℓ)) as (HQ & HK & HV). exact (conj HK (conj HV HQ)).
Qed.

(** The whole layer with shared heads, whatever map g says which key head a query head reads: W_K and W_V have h_kv
    blocks of columns, and the merged sums over the groups go back through them. *)
Theorem layer_with_shared_heads batch n_q n_k d_x d_m h h_kv d_k d_v d_y (g : nat -> nat) (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h_kv * d_k)%nat]) (W_V : tensor [d_m; (h_kv * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q : tensor [(h * d_k)%nat]) (b_K : tensor [(h_kv * d_k)%nat])
    (b_V : tensor [(h_kv * d_v)%nat]) (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R)
    (dY : tensor [batch; n_q; d_y]) :
  let Y := layer h h_kv g M scale B in
  let Q : tensor [batch; h; n_q; d_k] := fun s => split (X.[s] × W_Q ⊕ rows b_Q) in
  let K : tensor [batch; h_kv; n_k; d_k] := fun s => split (X_mem.[s] × W_K ⊕ rows b_K) in
  let V : tensor [batch; h_kv; n_k; d_v] := fun s => split (X_mem.[s] × W_V ⊕ rows b_V) in
  let P : tensor [batch; h; n_q; n_k] := fun s r => weights (M s r) scale Q.[s].[r] K.[s].[g r] B.[s].[r] in
  let dO : tensor [batch; h; n_q; d_v] := fun s => split (dY.[s] × W_O^T) in
  let dP : tensor [batch; h; n_q; n_k] := fun s r => dO.[s].[r] × V.[s].[g r]^T in
  let D : tensor [batch; h; n_q] := fun s r => rowsum (dP.[s].[r] ∘ P.[s].[r]) in
  let dS : tensor [batch; h; n_q; n_k] := fun s r i j => P s r i j * (dP s r i j - D s r i) in
  let dQ_r : tensor [batch; h; n_q; d_k] := fun s r => scale • (dS.[s].[r] × K.[s].[g r]) in
  let dK_g : tensor [batch; h_kv; n_k; d_k] :=
    fun s k j l => ∑ r < h, if (g r =? k)%nat then (scale • (dS.[s].[r]^T × Q.[s].[r])) j l else 0 in
  let dV_g : tensor [batch; h_kv; n_k; d_v] :=
    fun s k j l => ∑ r < h, if (g r =? k)%nat then (P.[s].[r]^T × dO.[s].[r]) j l else 0 in
  let dQ : tensor [batch; n_q; (h * d_k)%nat] := fun s => merge dQ_r.[s] in
  let dK : tensor [batch; n_k; (h_kv * d_k)%nat] := fun s => merge dK_g.[s] in
  let dV : tensor [batch; n_k; (h_kv * d_v)%nat] := fun s => merge dV_g.[s] in
  (forall r, (r < h)%nat -> (g r < h_kv)%nat) ->
  gradient ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) dY ->
  gradient (fun X => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X (fun s => dQ.[s] × W_Q^T) /\
  gradient (fun X_mem => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) X_mem
    (fun s => dK.[s] × W_K^T ⊕ dV.[s] × W_V^T) /\
  gradient (fun W_Q => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_Q
    (fun a c => ∑ s < batch, (X.[s]^T × dQ.[s]) a c) /\
  gradient (fun W_K => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_K
    (fun a c => ∑ s < batch, (X_mem.[s]^T × dK.[s]) a c) /\
  gradient (fun W_V => ℓ (Y X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_V
    (fun a c => ∑ s < batch, (X_mem.[s]^T × dV.[s]) a c).
Proof.
  intros Y Q K V P dO dP D dS dQ_r dK_g dV_g dQ dK dV Hg Hℓ.
  assert (E : dS = fun s r => centered P.[s].[r] dP.[s].[r]).
  { apply functional_extensionality; intro s. apply functional_extensionality; intro r.
    symmetry. apply centered_as_rowsum. }
  unfold dQ, dK, dQ_r, dK_g. rewrite E.
  pose proof (layer_gradients h h_kv g M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ Hg
    (equal_refl _) (equal_refl _) Hℓ) as ((H1 & H2 & _) & (H3 & H4 & _ & H5 & _) & _).
  exact (conj H1 (conj H3 (conj H2 (conj H4 H5)))).
Qed.

(** Query heads that share their keys are one head with more queries: those of the whole group, one under the other.
    *)
Theorem shared_keys_are_one_head h n_q n_k d_k d_v (M : nat -> mask) scale (B : tensor [h; n_q; n_k])
    (Q : tensor [h; n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) r i c :
  let M' : mask := fun x => M (x / n_q)%nat (x mod n_q)%nat in
  let Q' : tensor [(h * n_q)%nat; d_k] := fun x => Q (x / n_q)%nat (x mod n_q)%nat in
  let B' : tensor [(h * n_q)%nat; n_k] := fun x => B (x / n_q)%nat (x mod n_q)%nat in
  (i < n_q)%nat -> attention M' scale Q' K V B' (r * n_q + i)%nat c = attention (M r) scale Q.[r] K V B.[r] i c.
Proof.
  intros M' Q' B' Hi. unfold M', Q', B', attention, weights, scores, softmax, Z, E, matmul, scaled, add,
    transpose, part.
  now rewrite div_block, mod_block.
Qed.

(** ** The biases *)

(** The key's bias does nothing in any head: its gradient is 0, for every mask. *)
Theorem key_biases_learn_nothing batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  gradient ℓ (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) dY ->
  gradient (fun b_K => ℓ (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_K (fun _ => 0).
Proof.
  intro Hℓ. pose proof (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ (own_lt h)
    (collect_own_batch _) (collect_own_batch _) Hℓ) as (_ & (_ & _ & H & _) & _).
  refine (gradient_ext (s := [(h * d_k)%nat]) _ _ _ _ _ H). intros c Hc. simpl. apply sum_0; intros s _.
  unfold merge, part, scaled. rewrite <- sum_l. unfold matmul at 1. rewrite sum_swap.
  rewrite sum_0; [ring|]. intros i _. unfold transpose at 1. rewrite <- sum_r.
  etransitivity; [apply Rmult_eq_compat_r; apply centered_rows|]. ring.
Qed.

(** With a single key all weights are 1 whatever the scores: neither the queries nor the keys learn, nor their
    matrices. *)
Theorem one_key_teaches_no_scores batch n_q d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; 1%nat]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; 1%nat; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  gradient ℓ (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) dY ->
  gradient (fun W_Q => ℓ (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_Q (fun _ _ => 0) /\
  gradient (fun W_K => ℓ (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) W_K (fun _ _ => 0) /\
  gradient (fun b_Q => ℓ (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_Q (fun _ => 0).
Proof.
  intro Hℓ.
  assert (Z1 : forall (N : mask) (Q : tensor [n_q; d_k]) (K : tensor [1%nat; d_k]) (S T : tensor [n_q; 1%nat]) i,
    centered (weights N scale Q K S) T i 0%nat = 0).
  { intros N Q K S T i. pose proof (centered_rows N (scores scale Q K S) T i) as H. cbn [sum] in
    H. unfold weights. lra. }
  pose proof (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ dY _ _ (own_lt h)
    (collect_own_batch _) (collect_own_batch _) Hℓ) as ((_ & HQ & Hb) & (_ & HK & _) & _).
  refine (conj _ (conj _ _)).
  - refine (gradient_ext (s := [d_x; (h * d_k)%nat]) _ _ _ _ _ HQ). intros a _ c _. simpl. apply sum_0; intros s _.
    apply sum_0; intros i _. unfold merge, part, scaled, matmul. simpl. rewrite Z1. ring.
  - refine (gradient_ext (s := [d_m; (h * d_k)%nat]) _ _ _ _ _ HK). intros a _ c _. simpl. apply sum_0; intros s _.
    unfold merge, part, scaled, matmul. simpl. rewrite (sum_0 n_q); [ring|]. intros i _. unfold transpose.
      rewrite Z1. ring.
  - refine (gradient_ext (s := [(h * d_k)%nat]) _ _ _ _ _ Hb). intros c _. simpl. apply sum_0; intros s _.
    apply sum_0; intros i _. unfold merge, part, scaled, matmul. simpl. rewrite Z1. ring.
Qed.

(** Where every query has a key, the value's bias passes through the weights unchanged, and the output's bias can do
    its work: b_V W_O + b_O in the place of b_O, and 0 in the place of b_V, is the same layer. *)
Theorem eq_value_bias_merged batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d_y]) :
  let b_O' : tensor [d_y] := fun c => (∑ a < h * d_v, b_V a * W_O a c) + b_O c in
  (forall s r i, (s < batch)%nat -> (r < h)%nat -> (i < n_q)%nat -> live (M s r) n_k i) ->
  (forall s r i (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (b : tensor [d_v]) l,
     (s < batch)%nat -> (r < h)%nat -> (i < n_q)%nat ->
     (softmax (M s r) S × (V ⊕ rows b)) i l = (softmax (M s r) S × V) i l + b l) /\
  equal (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)
    (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K (fun _ => 0) b_O').
Proof.
  intros b_O' HL.
  assert (H : forall s r i (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (b : tensor [d_v]) l,
     (s < batch)%nat -> (r < h)%nat -> (i < n_q)%nat ->
     (softmax (M s r) S × (V ⊕ rows b)) i l = (softmax (M s r) S × V) i l + b l).
  { intros s r i S V b l Hs Hr Hi. unfold matmul, add, rows.
    transitivity (∑ k < n_k, (softmax (M s r) S i k * V k l + softmax (M s r) S i k * b l));
      [apply sum_ext; intros; ring|].
    rewrite sum_plus, <- sum_r, softmax_sum by auto. ring. }
  refine (conj H _). intros s Hs i Hi c Hc.
  pose (Q := (split (linear X.[s] W_Q b_Q)) : tensor [h; n_q; d_k]). pose
    (K := (split (linear X_mem.[s] W_K b_K)) : tensor [h; n_k; d_k]).
  pose (O := fun b => heads own (M s) scale Q K (split (linear X_mem.[s] W_V b)) B.[s]).
  change ((merge (O b_V) × W_O) i c + b_O c = (merge (O (fun _ => 0)) × W_O) i c + b_O' c).
  unfold b_O'. rewrite <- Rplus_assoc. f_equal. unfold matmul at 1 2. rewrite <- sum_plus. apply sum_ext; intros a Ha.
  rewrite <- Rmult_plus_distr_r. f_equal. destruct (block_of h d_v a Ha) as (Hr & Hl & Ea).
  assert (HO : forall b, merge (O b) i a = (weights (M s (a / d_v)%nat) scale Q.[a / d_v]%nat K.[a / d_v]%nat
    (B.[s]).[a / d_v]%nat ×
    columns (X_mem.[s] × W_V) (a / d_v)%nat) i (a mod d_v)%nat + b a).
  { intro b. rewrite <- (f_equal (b : nat -> R) Ea). exact
    (H s (a / d_v)%nat i (scores scale Q.[a / d_v]%nat K.[a / d_v]%nat (B.[s]).[a / d_v]%nat)
      (columns (X_mem.[s] × W_V) (a / d_v)%nat) (fun l => b (a / d_v * d_v + l)%nat) (a mod d_v)%nat Hs Hr Hi). }
  rewrite !HO. ring.
Qed.

(** What arrives at the value's bias is the sum of the rows of dC, and that is db_O through W_O: nothing that b_O does
    not know. *)
Theorem eq_value_bias_merged__gradient batch n_q n_k d_x d_m h d_k d_v d_y (M : nat -> nat -> mask) scale
    (B : tensor [batch; h; n_q; n_k]) (X : tensor [batch; n_q; d_x]) (X_mem : tensor [batch; n_k; d_m])
    (W_Q : tensor [d_x; (h * d_k)%nat]) (W_K : tensor [d_m; (h * d_k)%nat]) (W_V : tensor [d_m; (h * d_v)%nat])
    (W_O : tensor [(h * d_v)%nat; d_y]) (b_Q b_K : tensor [(h * d_k)%nat]) (b_V : tensor [(h * d_v)%nat])
    (b_O : tensor [d_y]) (ℓ : tensor [batch; n_q; d_y] -> R) (dY : tensor [batch; n_q; d_y]) :
  let dC : tensor [batch; n_q; (h * d_v)%nat] := fun s => dY.[s] × W_O^T in
  let db_O : tensor [d_y] := fun c => ∑ s < batch, ∑ i < n_q, dY s i c in
  (forall s r i, (s < batch)%nat -> (r < h)%nat -> (i < n_q)%nat -> live (M s r) n_k i) ->
  gradient ℓ (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O) dY ->
  gradient (fun b_V => ℓ (layer h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O)) b_V
    (fun a => ∑ s < batch, ∑ i < n_q, dC s i a) /\
  forall a, ∑ s < batch, ∑ i < n_q, dC s i a = ∑ c < d_y, db_O c * W_O a c.
Proof.
  intros dC db_O HL Hℓ. pose proof (layer_gradients h h own M scale B X X_mem W_Q W_K W_V W_O b_Q b_K b_V b_O ℓ
    dY _ _ (own_lt h)
    (collect_own_batch _) (collect_own_batch _) Hℓ) as (_ & (_ & _ & _ & _ & H) & _).
  split.
  - refine (gradient_ext (s := [(h * d_v)%nat]) _ _ _ _ _ H). intros a Ha. apply sum_ext; intros s Hs.
    destruct (block_of h d_v a Ha) as (Hr & Hl & Ea). unfold merge, part, matmul at 1. simpl. rewrite sum_swap.
    apply sum_ext; intros i Hi. unfold transpose at 1. rewrite <- sum_r.
    etransitivity; [apply Rmult_eq_compat_r; apply softmax_sum; now apply HL|].
    rewrite Rmult_1_l. unfold split. now rewrite Ea.
  - intro a. unfold dC, db_O, matmul, transpose, part.
    transitivity (∑ s < batch, ∑ c < d_y, ∑ i < n_q, dY s i c * W_O a c); [apply sum_ext; intros; apply sum_swap|].
    rewrite sum_swap. apply sum_ext; intros c _. rewrite sum_r. apply sum_ext; intros. now rewrite sum_r.
Qed.

(** ** torch's layout, gates *)

(** torch stores weights transposed, the three projections one under the other, E rows each. Gradients have the layout
    of their weights. ℓ may be any function of the three matrices. *)
Theorem eq_torch_layout E d (W_in : tensor [(3 * E)%nat; d]) (W_out : tensor [E; E]) :
  let W_Q (W_in : tensor [(3 * E)%nat; d]) : tensor [d; E] := fun a c => W_in c a in
  let W_K (W_in : tensor [(3 * E)%nat; d]) : tensor [d; E] := fun a c => W_in (E + c)%nat a in
  let W_V (W_in : tensor [(3 * E)%nat; d]) : tensor [d; E] := fun a c => W_in (2 * E + c)%nat a in
  (forall (ℓ : tensor [d; E] -> tensor [d; E] -> tensor [d; E] -> R) dW_Q dW_K dW_V,
     gradient3 ℓ (W_Q W_in) (W_K W_in) (W_V W_in) dW_Q dW_K dW_V ->
     exists dW_in, gradient (fun W_in => ℓ (W_Q W_in) (W_K W_in) (W_V W_in)) W_in dW_in /\
       equal (W_Q dW_in) dW_Q /\ equal (W_K dW_in) dW_K /\ equal (W_V dW_in) dW_V) /\
  (forall (ℓ : tensor [E; E] -> R) dW_O,
     gradient ℓ (W_out^T) dW_O -> gradient (fun W_out => ℓ (W_out^T)) W_out (dW_O^T)).
Proof.
  intros W_Q W_K W_V. split.
  - intros ℓ dW_Q dW_K dW_V H.
    pose (dW := (fun c a => if Nat.ltb c E then dW_Q a c else if Nat.ltb c (2 * E) then dW_K a (c - E)%nat else dW_V a
      (c - 2 * E)%nat)
      : tensor [(3 * E)%nat; d]).
    assert (EQ : forall a c, (c < E)%nat -> dW c a = dW_Q a c).
    { intros a c Hc. unfold dW. destruct (Nat.ltb_spec c E); [reflexivity|lia]. }
    assert (EK : forall a c, (c < E)%nat -> dW (E + c)%nat a = dW_K a c).
    { intros a c Hc. unfold dW. destruct (Nat.ltb_spec (E + c) E); [lia|]. destruct (Nat.ltb_spec (E + c) (2 * E));
      [|lia]. f_equal. lia. }
    assert (EV : forall a c, (c < E)%nat -> dW (2 * E + c)%nat a = dW_V a c).
    { intros a c Hc. unfold dW. destruct (Nat.ltb_spec (2 * E + c) E);
      [lia|]. destruct (Nat.ltb_spec (2 * E + c) (2 * E)); [lia|]. f_equal. lia. }
    exists dW. refine (conj _ (conj _ (conj _ _))).
    + intros w t tW Hw Ht. eapply derive_eq.
      * apply (H (fun u => W_Q (w u)) (fun u => W_K (w u)) (fun u => W_V (w u)) t (W_Q tW) (W_K tW) (W_V tW)
          (f_equal W_Q Hw) (f_equal W_K Hw) (f_equal W_V Hw)); intros a Ha c Hc; apply Ht; lia || exact Ha.
      * symmetry. change ((3 * E)%nat) with ((E + (E + (E + 0)))%nat). simpl. rewrite !sum_add. cbn [sum]. rewrite
        Rplus_0_r, <- Rplus_assoc.
        f_equal; [f_equal|]; symmetry; rewrite sum_swap; apply sum_ext; intros c Hc; apply sum_ext; intros a Ha.
        -- now rewrite EQ.
        -- now rewrite EK.
        -- unfold W_V. replace (E + (E + c))%nat with (2 * E + c)%nat by lia. now rewrite EV.
    + intros a _ c Hc. now apply EQ.
    + intros a _ c Hc. now apply EK.
    + intros a _ c Hc. now apply EV.
  - intros ℓ dW_O. apply (backward (transpose (m := E) (n := E)) W_out transpose); [intros; now apply transpose_moves|].
    intro. apply dot_transpose.
Qed.

(** Give each head a gate, a number that multiplies its output. At 1, where it changes nothing, its gradient is the
    inner product of the head's output with what arrives there: the sum of D over all queries. *)
Theorem eq_head_gates batch h n_q n_k d_v (P : tensor [batch; h; n_q; n_k]) (V : tensor [batch; h; n_k; d_v])
    (ℓ : tensor [batch; h; n_q; d_v] -> R) (dO : tensor [batch; h; n_q; d_v]) :
  let O : tensor [batch; h; n_q; d_v] := fun s r => P.[s].[r] × V.[s].[r] in
  let dP : tensor [batch; h; n_q; n_k] := fun s r => dO.[s].[r] × V.[s].[r]^T in
  let D : tensor [batch; h; n_q] := fun s r => rowsum (dP.[s].[r] ∘ P.[s].[r]) in
  gradient ℓ O dO ->
  gradient (s := [h]) (fun a => ℓ (fun s r i l => a r * O s r i l)) (fun _ => 1)
    (fun r => ∑ s < batch, ⟨O.[s].[r], dO.[s].[r]⟩) /\
  forall r, ∑ s < batch, ⟨O.[s].[r], dO.[s].[r]⟩ = ∑ s < batch, ∑ i < n_q, D s r i.
Proof.
  intros O dP D Hℓ. split.
  - intros a t ta Ha Hta. eapply derive_eq.
    + apply (Hℓ (fun u s r i l => a u r * O s r i l) t (fun s r i l => ta r * O s r i l)).
      * rewrite Ha. repeat (apply functional_extensionality; intro). ring.
      * intros s _ r Hr i _ l _. eapply derive_eq;
        [apply (derive_mult (fun u => a u r) (fun _ => O s r i l)); [now apply Hta|apply derive_const]|].
        cbv beta. ring.
    + change (∑ s < batch, ∑ r < h, ∑ i < n_q, ∑ l < d_v, dO s r i l * (ta r * O s r i l) =
        ∑ r < h, (∑ s < batch, ∑ i < n_q, ∑ l < d_v, O s r i l * dO s r i l) * ta r).
      rewrite sum_swap. apply sum_ext; intros r _. rewrite sum_r. apply sum_ext; intros s _. rewrite sum_r. apply
        sum_ext; intros i _.
      rewrite sum_r. apply sum_ext; intros. ring.
  - intro r. apply sum_ext; intros s _. change (⟨P.[s].[r] × V.[s].[r], dO.[s].[r]⟩ = ∑ i < n_q, D s r i).
    rewrite dot_comm, dot_matmul_r. reflexivity.
Qed.
