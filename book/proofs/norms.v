(** * Norms of rows (chapter 9, QK-norm)

    Each row divided by its length, or by its root mean square, with eps and a gain. Both are one formula: the row
    divided by ρ = sqrt (c‖x‖² + eps), with c = 1 for the length and c = 1/d for the mean. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export head.

Definition size {n d} (c eps : R) (X : tensor [n; d]) : tensor [n] := fun i => sqrt (c * (∑ a < d, X i a ^ 2) + eps).
Definition by_size {n d} (c eps : R) (X : tensor [n; d]) : tensor [n; d] := fun i a => X i a / size c eps X i.

(** The book's two. *)
Definition length {n d} (X : tensor [n; d]) : tensor [n] := fun i => sqrt (∑ a < d, X i a ^ 2).
Definition l2_norm {n d} (X : tensor [n; d]) : tensor [n; d] := fun i a => X i a / length X i.
Definition rms {n d} (eps : R) (X : tensor [n; d]) : tensor [n] := fun i => sqrt (/ INR d * (∑ a < d, X i a ^ 2) + eps).
Definition rms_norm {n d} (eps : R) (gain : tensor [d]) (X : tensor [n; d]) : tensor [n; d] :=
  fun i a => gain a * (X i a / rms eps X i).

(** ** Both at once *)

(** The derivative, in both modes: what points along the row is taken out, and the rest is divided by ρ. *)
Definition projected {n d} (c : R) (ρ : tensor [n]) (X' T : tensor [n; d]) : tensor [n; d] :=
  fun i a => 1 / ρ i * (T i a - X' i a * (c * ∑ b < d, X' i b * T i b)).

Lemma projected_adjoint {n d} c ρ (X' A B : tensor [n; d]) : ⟨A, projected c ρ X' B⟩ = ⟨projected c ρ X' A, B⟩.
Proof.
  simpl. apply sum_ext; intros i _. unfold projected.
  set (α := ∑ b < d, X' i b * A i b). set (β := ∑ b < d, X' i b * B i b).
  transitivity (∑ a < d, (1 / ρ i * (A i a * B i a) - 1 / ρ i * c * β * (X' i a * A i a))); [apply sum_ext; intros; ring|].
  transitivity (∑ a < d, (1 / ρ i * (A i a * B i a) - 1 / ρ i * c * α * (X' i a * B i a))); [|apply sum_ext; intros; ring].
  rewrite !sum_minus, <- !sum_l. fold α β. ring.
Qed.

Lemma size_derive {n d} c eps (x : R -> tensor [n; d]) t tX i :
  moves x t tX -> (i < n)%nat -> 0 < c * (∑ a < d, x t i a ^ 2) + eps ->
  is_derive (fun u => size c eps (x u) i) t (c * ∑ a < d, by_size c eps (x t) i a * tX i a).
Proof.
  intros H Hi Hpos. unfold size. eapply derive_eq.
  - apply (is_derive_sqrt (fun u => c * (∑ a < d, x u i a ^ 2) + eps)); [|exact Hpos].
    apply (derive_plus (fun u => c * (∑ a < d, x u i a ^ 2)) (fun _ => eps)); [|apply derive_const].
    apply (derive_scale c (fun u => ∑ a < d, x u i a ^ 2)). apply (sum_derive d (fun a u => x u i a ^ 2) t (fun a => 2 * (x t i a * tX i a))).
    intros a Ha. eapply derive_eq.
    + refine (is_derive_ext (fun u => x u i a * x u i a) _ t _ _ (derive_mult _ _ t _ _ (H i Hi a Ha) (H i Hi a Ha))).
      intro u. simpl. ring.
    + cbv beta. ring.
  - cbv beta. apply sqrt_lt_R0 in Hpos. rewrite <- sum_l. unfold by_size. fold (size c eps (x t) i). fold (size c eps (x t) i) in Hpos.
    rewrite (sum_ext d (fun a => x t i a / size c eps (x t) i * tX i a) (fun a => / size c eps (x t) i * (x t i a * tX i a)))
      by (intros; unfold Rdiv; ring).
    rewrite <- sum_l. field. lra.
Qed.

Lemma by_size_moves {n d} c eps (x : R -> tensor [n; d]) t tX :
  (forall i, (i < n)%nat -> 0 < c * (∑ a < d, x t i a ^ 2) + eps) -> moves x t tX ->
  moves (s := [n; d]) (fun u => by_size c eps (x u)) t (projected c (size c eps (x t)) (by_size c eps (x t)) tX).
Proof.
  intros Hpos H i Hi a Ha. pose proof (sqrt_lt_R0 _ (Hpos i Hi)) as Hρ. fold (size c eps (x t) i) in Hρ.
  eapply derive_eq.
  - apply (derive_div (fun u => x u i a) (fun u => size c eps (x u) i)); [exact (H i Hi a Ha)|exact (size_derive c eps x t tX i H Hi (Hpos i Hi))|lra].
  - unfold projected. set (D := c * sum d _). unfold by_size. cbv beta. field. lra.
Qed.

Lemma by_size_vjp {n d} c eps (X : tensor [n; d]) (ℓ : tensor [n; d] -> R) (dX' : tensor [n; d]) :
  (forall i, (i < n)%nat -> 0 < c * (∑ a < d, X i a ^ 2) + eps) ->
  gradient ℓ (by_size c eps X) dX' ->
  gradient (fun X => ℓ (by_size c eps X)) X (projected c (size c eps X) (by_size c eps X) dX').
Proof.
  intro Hpos. apply (backward (by_size c eps) X (projected c (size c eps X) (by_size c eps X))); [|apply projected_adjoint].
  intros x t tX Hx Ht. rewrite <- Hx. apply by_size_moves; [now rewrite Hx|exact Ht].
Qed.

(** How much of the length gets through: none if eps = 0. *)
Lemma projected_along {n d} c eps (X dX' : tensor [n; d]) i :
  0 < c * (∑ a < d, X i a ^ 2) + eps ->
  ∑ a < d, X i a * projected c (size c eps X) (by_size c eps X) dX' i a
  = eps / size c eps X i ^ 2 * ∑ a < d, by_size c eps X i a * dX' i a.
Proof.
  intro Hpos. pose proof (sqrt_lt_R0 _ Hpos) as Hρ. fold (size c eps X i) in Hρ.
  assert (Hsq : size c eps X i ^ 2 = c * (∑ a < d, X i a ^ 2) + eps) by (apply pow2_sqrt; lra).
  unfold projected. set (D := ∑ b < d, by_size c eps X i b * dX' i b).
  transitivity (D - c * D / size c eps X i ^ 2 * ∑ a < d, X i a ^ 2).
  - unfold D at 2. rewrite sum_l, <- sum_minus. apply sum_ext; intros a _. fold D. unfold by_size. field. lra.
  - rewrite <- (Rmult_1_l D) at 1. replace 1 with (size c eps X i ^ 2 / size c eps X i ^ 2) by (field; lra).
    rewrite Hsq at 1. field. lra.
Qed.

Lemma length_size {n d} (X : tensor [n; d]) i : length X i = size 1 0 X i.
Proof. unfold length, size. f_equal. ring. Qed.

Lemma l2_by_size {n d} : @l2_norm n d = by_size 1 0.
Proof. extensionality X. extensionality i. extensionality a. unfold l2_norm, by_size. now rewrite length_size. Qed.

Lemma length_pos {n d} (X : tensor [n; d]) i : length X i <> 0 -> 0 < 1 * (∑ a < d, X i a ^ 2) + 0.
Proof.
  intro H. assert (0 <= ∑ a < d, X i a ^ 2) by (apply sum_nonneg; intros; apply pow2_ge_0).
  destruct (Req_dec (∑ a < d, X i a ^ 2) 0) as [E|E]; [|lra].
  contradict H. unfold length. rewrite E. apply sqrt_0.
Qed.

(** ** The chapter's theorems *)

(** The gradient of a normalized row goes back without what points along the row, divided by the row's length. For
    rows that have a length. *)
Theorem eq_var_norm_vjp n d (X : tensor [n; d]) (ℓ : tensor [n; d] -> R) (dX' : tensor [n; d]) :
  let X' := l2_norm X in
  (forall i, (i < n)%nat -> length X i <> 0) ->
  gradient ℓ X' dX' ->
  gradient (fun X => ℓ (l2_norm X)) X (fun i a => 1 / length X i * (dX' i a - X' i a * ∑ b < d, X' i b * dX' i b)).
Proof.
  intros X' HX H. unfold X' in *. rewrite l2_by_size in *.
  refine (gradient_ext _ _ _ _ _ (by_size_vjp 1 0 X ℓ dX' _ H)); [|intros i Hi; now apply length_pos, HX].
  intros i _ a _. simpl. unfold projected. now rewrite length_size, Rmult_1_l.
Qed.

(** What comes out is perpendicular to what went in, row by row: so each query to its gradient, each key to its. *)
Theorem eq_var_norm_orthogonal n d (X dX' : tensor [n; d]) :
  let X' := l2_norm X in
  let dX : tensor [n; d] := fun i a => 1 / length X i * (dX' i a - X' i a * ∑ b < d, X' i b * dX' i b) in
  forall i, length X i <> 0 -> ∑ a < d, X i a * dX i a = 0.
Proof.
  intros X' dX i H. transitivity (0 / size 1 0 X i ^ 2 * ∑ a < d, by_size 1 0 X i a * dX' i a); [|unfold Rdiv; ring].
  rewrite <- projected_along by now apply length_pos. apply sum_ext; intros a _. unfold dX, X', projected.
  now rewrite l2_by_size, length_size, Rmult_1_l.
Qed.

(** Inside a head that normalizes its queries and keys, with any scale: dQ and dK are those of plain attention on the
    normalized rows, taken back through the norm. *)
Theorem qk_norm_head n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let Q' := l2_norm Q in
  let K' := l2_norm K in
  let P := weights M scale Q' K' B in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let dQ' : tensor [n_q; d_k] := scale • (dS × K') in
  let dK' : tensor [n_k; d_k] := scale • (dS^T × Q') in
  (forall i, (i < n_q)%nat -> length Q i <> 0) ->
  (forall j, (j < n_k)%nat -> length K j <> 0) ->
  gradient ℓ (attention M scale Q' K' V B) dO ->
  gradient (fun Q => ℓ (attention M scale (l2_norm Q) K' V B)) Q
    (fun i a => 1 / length Q i * (dQ' i a - Q' i a * ∑ b < d_k, Q' i b * dQ' i b))
  /\ gradient (fun K => ℓ (attention M scale Q' (l2_norm K) V B)) K
    (fun j a => 1 / length K j * (dK' j a - K' j a * ∑ b < d_k, K' j b * dK' j b)).
Proof.
  intros Q' K' P dP dS dQ' dK' HQ HK H. split.
  - apply (eq_var_norm_vjp n_q d_k Q (fun Q' => ℓ (attention M scale Q' K' V B)) dQ' HQ).
    exact (eq_dQ n_q n_k d_k d_v M scale Q' K' V B ℓ dO H).
  - apply (eq_var_norm_vjp n_k d_k K (fun K' => ℓ (attention M scale Q' K' V B)) dK' HK).
    exact (eq_dK n_q n_k d_k d_v M scale Q' K' V B ℓ dO H).
Qed.

(** The root mean square ρ, with eps and a gain: the gradients of the rows and of the gain, and how much of the length
    eps lets through. *)
Theorem eq_var_rms n d eps (gain : tensor [d]) (X : tensor [n; d]) (ℓ : tensor [n; d] -> R) (dY : tensor [n; d]) :
  let ρ := rms eps X in
  let X' : tensor [n; d] := fun i a => X i a / ρ i in
  let dX' : tensor [n; d] := fun i a => gain a * dY i a in
  let dX : tensor [n; d] := fun i a => 1 / ρ i * (dX' i a - X' i a * (/ INR d * ∑ b < d, X' i b * dX' i b)) in
  (forall i, (i < n)%nat -> ρ i <> 0) ->
  gradient ℓ (rms_norm eps gain X) dY ->
  gradient (fun X => ℓ (rms_norm eps gain X)) X dX
  /\ gradient (fun gain => ℓ (rms_norm eps gain X)) gain (fun a => ∑ i < n, dY i a * X' i a)
  /\ forall i, (i < n)%nat -> ∑ a < d, X i a * dX i a = eps / ρ i ^ 2 * ∑ a < d, X' i a * dX' i a.
Proof.
  intros ρ X' dX' dX HX H.
  assert (Hpos : forall i, (i < n)%nat -> 0 < / INR d * (∑ a < d, X i a ^ 2) + eps).
  { intros i Hi. apply Rnot_le_lt. intro L. apply (HX i Hi). now apply sqrt_neg_0. }
  split; [|split].
  - apply (by_size_vjp (/ INR d) eps X (fun X' => ℓ (fun i a => gain a * X' i a)) dX' Hpos).
    apply (backward (s := [n; d]) (r := [n; d]) (fun X' i a => gain a * X' i a) _ (fun T i a => gain a * T i a) ℓ dY); [| |exact H].
    + intros x t tX _ Ht i Hi a Ha. exact (derive_scale (gain a) (fun u => x u i a) t _ (Ht i Hi a Ha)).
    + intro T. simpl. apply sum_ext; intros i _. apply sum_ext; intros a _. unfold dX'. ring.
  - apply (backward (s := [d]) (r := [n; d]) (fun gain => rms_norm eps gain X) gain (fun T i a => T a * X' i a) ℓ dY); [| |exact H].
    + intros x t tX _ Ht i Hi a Ha. eapply derive_eq; [exact (derive_mult (fun u => x u a) (fun _ => X' i a) t _ _ (Ht a Ha) (derive_const _ t))|].
      cbv beta. ring.
    + intro T. simpl. rewrite sum_swap. apply sum_ext; intros a _. rewrite sum_r. apply sum_ext; intros i _. ring.
  - intros i Hi. exact (projected_along (/ INR d) eps X dX' i (Hpos i Hi)).
Qed.
