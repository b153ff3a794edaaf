(** * In the wild (appendix)

    What the answers and notes of the appendix write, in their own forms: block matrices, a sum of Jacobians, and three
    lines that are nearly right. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export heads.

(** ** Lines that nearly work *)

Definition diag {n} (d : tensor [n]) : tensor [n; n] := fun i k => δ i k * d i.

(** P dPᵀ has D on its diagonal: keep only that, and the matrix formula is right. For one query it is right as it
    stands. *)
Theorem eq_wild_diagonal n_q n_k (P dP : tensor [n_q; n_k]) :
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - rowsum (P ∘ dP) i) in
  (forall i j, (i < n_q)%nat -> dS i j = (dP ∘ P) i j - (diag (fun i => (P × dP^T) i i) × P) i j) /\
  (n_q = 1%nat -> forall i j, (i < n_q)%nat -> dS i j = (dP ∘ P) i j - (P × dP^T × P) i j).
Proof.
  intro dS. split.
  - intros i j Hi. unfold dS, rowsum, hadamard, diag, matmul at 1, transpose.
    rewrite (sum_ext n_q _ (fun k => δ i k * ((∑ a < n_k, P i a * dP i a) * P k j))) by (intros; unfold matmul; ring).
    rewrite sum_δ by exact Hi. ring.
  - intros -> i j Hi. replace i with 0%nat by lia. unfold dS, rowsum, hadamard, matmul, transpose. cbn [sum]. ring.
Qed.

(** The mean takes the same from each key of a row, where the right form takes in proportion to the weight. *)
Theorem eq_wild_mean n_q n_k (P dP : tensor [n_q; n_k]) i j :
  let D := rowsum (P ∘ dP) in
  let dS_mean := P i j * dP i j - rowsum (P ∘ dP) i / INR n_k in
  let dS := P i j * (dP i j - D i) in
  dS_mean - dS = (P i j - 1 / INR n_k) * D i.
Proof. intros D dS_mean dS. unfold dS_mean, dS, D, Rdiv. ring. Qed.

(** A weight that has moved by −η dW before the input's gradient is taken makes that gradient off by −η dQ dWᵀ. *)
Theorem eq_wild_update n d m η (W dW : tensor [m; d]) (dQ : tensor [n; d]) i a :
  let dX := dQ × W^T in
  let dX_wrong := dQ × ((fun a c => W a c - η * dW a c) : tensor [m; d])^T in
  dX_wrong i a - dX i a = - η * (dQ × dW^T) i a.
Proof.
  intros dX dX_wrong. unfold dX_wrong, dX, matmul, transpose. rewrite <- sum_minus, sum_l. apply sum_ext; intros. ring.
Qed.

(** ** The Jacobian of a product *)

(** The derivative of Z = Q Kᵀ has four indices: K once for every row of Q, with zeros between different rows. *)
Theorem eq_qk_jacobian n_q n_k d (Q : tensor [n_q; d]) (K : tensor [n_k; d]) i j :
    (i < n_q)%nat -> (j < n_k)%nat ->
  gradient (fun Q => (Q × K^T) i j) Q (fun k l => δ i k * K j l) /\
  gradient (fun K => (Q × K^T) i j) K (fun k l => δ j k * Q i l).
Proof.
  intros Hi Hj.
  assert (H : forall n (X tX : tensor [n; d]) (y : nat -> R) k, (k < n)%nat ->
    ⟨(fun a l => δ k a * y l) : tensor [n; d], tX⟩ = ∑ l < d, tX k l * y l).
  { intros n X tX y k Hk. simpl. rewrite <- (sum_δ n k (fun a => ∑ l < d, tX a l * y l) Hk). apply sum_ext; intros a _.
    rewrite sum_l. apply sum_ext; intros. ring. }
  split; intros x t tX _ Ht; rewrite (H _ (x t)) by assumption.
  - apply (sum_derive d (fun l u => x u i l * K j l)). intros l Hl.
    eapply derive_eq; [apply (derive_mult (fun u => x u i l)); [exact (Ht i Hi l Hl)|apply derive_const]|cbv beta;
      ring].
  - apply (sum_derive d (fun l u => Q i l * x u j l)). intros l Hl.
    eapply derive_eq; [apply (derive_mult (fun _ => Q i l)); [apply derive_const|exact (Ht j Hj l Hl)]|cbv beta; ring].
Qed.

(** ** The explicit note: Ω is dS *)

(** The Jacobian of softmax for row i: Δσ − σσᵀ. *)
Definition jacobian {n_q n_k} (P : tensor [n_q; n_k]) (i : nat) : tensor [n_k; n_k] :=
  fun k j => δ k j * P i k - P i k * P i j.

(** e_i e_iᵀ *)
Definition unit_square {n} (i : nat) : tensor [n; n] := fun a b => δ i a * δ i b.

Lemma row_by_jacobian {n_q n_k} (P X : tensor [n_q; n_k]) i j : (j < n_k)%nat ->
    (X × jacobian P i) i j = P i j * (X i j - ∑ k < n_k, P i k * X i k).
Proof.
  intro Hj. unfold matmul, jacobian.
  rewrite (sum_ext n_k _ (fun k => δ j k * (X i k * P i k) - P i j * (P i k * X i k)))
    by (intros k _; rewrite (δ_comm k j); ring).
  rewrite sum_minus, sum_δ, <- sum_l by exact Hj. ring.
Qed.

Lemma omega_rows {n_q n_k d_v} (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v])
    (Λ : tensor [n_q; d_v]) i j : (i < n_q)%nat ->
  ∑ r < n_q, (unit_square r × Λ × V^T × jacobian P r) i j = (Λ × V^T × jacobian P i) i j.
Proof.
  intro Hi. transitivity (∑ r < n_q, δ i r * (Λ × V^T × jacobian P r) i j);
    [|exact (sum_δ n_q i (fun r => (Λ × V^T × jacobian P r) i j) Hi)].
  apply sum_ext; intros r Hr. unfold matmul at 1 4. rewrite sum_l. apply sum_ext; intros k _.
  unfold matmul at 1 3. rewrite <- Rmult_assoc, sum_l, !sum_r. apply sum_ext; intros l _.
  replace ((unit_square r × Λ) i l) with (δ i r * Λ i l); [ring|].
  unfold matmul, unit_square. rewrite (sum_ext n_q _ (fun a => δ r a * (δ r i * Λ a l))) by (intros; ring).
  rewrite sum_δ by exact Hr. rewrite (δ_comm r i). destruct (Nat.eq_dec i r) as [->|Hne]; [ring|].
  rewrite δ_other by exact Hne. ring.
Qed.

(** Row i of Ω is row i of Λ Vᵀ, times the Jacobian of softmax for that row. *)
Theorem eq_omega_stacked n_q n_k d_v (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (Λ : tensor [n_q; d_v]) i j :
  let Ω := fun i j => ∑ r < n_q, (unit_square r × Λ × V^T × jacobian P r) i j in
  (i < n_q)%nat ->
  Ω i j = ∑ k < n_k, (∑ l < d_v, Λ i l * V k l) * (δ k j * P i k - P i k * P i j).
Proof. intros Ω Hi. exact (omega_rows P V Λ i j Hi). Qed.

(** Ω is dS: multiply out, and no Jacobian is left. *)
Theorem eq_omega n_q n_k d_v (P : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (Λ : tensor [n_q; d_v]) :
  let Ω : tensor [n_q; n_k] := fun i j => ∑ r < n_q, (unit_square r × Λ × V^T × jacobian P r) i j in
  equal Ω (fun i j => P i j * ((Λ × V^T) i j - rowsum ((Λ × V^T) ∘ P) i)).
Proof.
  intros Ω i Hi j Hj. simpl. unfold Ω. rewrite omega_rows by exact Hi. rewrite row_by_jacobian by exact Hj.
  do 2 f_equal. unfold rowsum, hadamard. apply sum_ext; intros. ring.
Qed.

(** The sum of Jacobians is the gradient at the scores. *)
Theorem eq_omega_sum n_q n_k d_v (M : mask) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (ℓ : tensor [n_q; d_v] -> R)
    (Λ : tensor [n_q; d_v]) :
  let P := softmax M S in
  gradient ℓ (P × V) Λ ->
  gradient (fun S => ℓ (softmax M S × V)) S (fun i j => ∑ r < n_q, (unit_square r × Λ × V^T × jacobian P r) i j).
Proof.
  intros P H. refine (gradient_ext _ _ _ _ _ (eq_dS n_q n_k d_v M S V ℓ Λ H)). intros i Hi j Hj.
  symmetry. exact (eq_omega n_q n_k d_v P V Λ i Hi j Hj).
Qed.

(** The note's three gradients, with a scale. σ(p_i) is row i of P, as a column. *)
Theorem eq_omega_gradients n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v])
    (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (Λ : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let Ω : tensor [n_q; n_k] := fun i j => ∑ r < n_q, (unit_square r × Λ × V^T × jacobian P r) i j in
  gradient ℓ (attention M scale Q K V B) Λ ->
  gradient (fun Q => ℓ (attention M scale Q K V B)) Q (scale • (Ω × K)) /\
  gradient (fun K => ℓ (attention M scale Q K V B)) K (scale • (Ω^T × Q)) /\
  gradient (fun V => ℓ (attention M scale Q K V B)) V (fun j l => ∑ i < n_q, P i j * ∑ a < n_q, δ i a * Λ a l).
Proof.
  intros P Ω H.
  assert (HΩ : forall i j, (i < n_q)%nat -> (j < n_k)%nat -> centered P (Λ × V^T) i j = Ω i j).
  { intros i j Hi Hj. unfold Ω. rewrite omega_rows by exact Hi. rewrite row_by_jacobian by exact Hj. reflexivity. }
  split; [|split].
  - refine (gradient_ext _ _ _ _ _ (gradient_Q M scale Q K V B ℓ Λ H)). intros i Hi c _. simpl. unfold scaled. f_equal.
    apply sum_ext; intros j Hj. f_equal. exact (HΩ i j Hi Hj).
  - refine (gradient_ext _ _ _ _ _ (gradient_K M scale Q K V B ℓ Λ H)). intros j Hj c _. simpl. unfold scaled. f_equal.
    apply sum_ext; intros i Hi. f_equal. exact (HΩ i j Hi Hj).
  - refine (gradient_ext _ _ _ _ _ (gradient_V M scale Q K V B ℓ Λ H)). intros j Hj l _. apply sum_ext; intros i Hi.
    unfold transpose. fold P. f_equal. symmetry. exact (sum_δ n_q i (fun a => Λ a l) Hi).
Qed.

(** ** The route with block matrices

    h heads, one sequence, no mask and no bias; S_r, P_r and V_r belong to head r. [merge] sets arrays of all heads side
    by side. *)

(** Arrays of all heads as blocks on a diagonal. *)
Definition on_diagonal {h m n} (A : tensor [h; m; n]) : tensor [(h * m)%nat; (h * n)%nat] :=
  fun k l => if (k / m =? l / n)%nat then A (k / m)%nat (k mod m)%nat (l mod n)%nat else 0.

(** J: blocks of ones on a diagonal. *)
Definition ones h n : tensor [(h * n)%nat; (h * n)%nat] := fun k l => if (k / n =? l / n)%nat then 1 else 0.

(** E_r: picks block r. *)
Definition pick h n (r : nat) : tensor [n; (h * n)%nat] := fun j k => δ (r * n + j) k.

Lemma in_a_head h n k : (k < h * n)%nat -> exists r j, (r < h)%nat /\ (j < n)%nat /\ k = (r * n + j)%nat.
Proof. intro H. destruct (block_of h n k H) as [Hr [Hj E]]. exists (k / n)%nat, (k mod n)%nat. auto. Qed.

Lemma merge_at {n h d} (A : tensor [h; n; d]) i r j : (j < d)%nat -> merge A i (r * d + j)%nat = A r i j.
Proof. intro H. unfold merge. now rewrite div_block, mod_block. Qed.

Lemma sum_one_head h n r f : (r < h)%nat ->
  ∑ k < h * n, (if (k / n =? r)%nat then f k else 0) = ∑ j < n, f (r * n + j)%nat.
Proof.
  intro Hr. rewrite sum_mul, (sum_one h r _ Hr).
  - apply sum_ext; intros j Hj. now rewrite div_block, Nat.eqb_refl.
  - intros b _ Hb. apply sum_0; intros j Hj. rewrite div_block by exact Hj. now rewrite (proj2 (Nat.eqb_neq b r) Hb).
Qed.

Lemma times_ones {h m n} (A : tensor [m; (h * n)%nat]) i r j : (r < h)%nat -> (j < n)%nat ->
    (A × ones h n) i (r * n + j)%nat = ∑ k < n, A i (r * n + k)%nat.
Proof.
  intros Hr Hj. rewrite <- (sum_one_head h n r (A i) Hr). unfold matmul, ones. apply sum_ext; intros k _.
  rewrite div_block by exact Hj. destruct (k / n =? r)%nat; ring.
Qed.

Lemma times_diagonal {h m n p} (A : tensor [m; (h * n)%nat]) (B : tensor [h; n; p]) i r l : (r < h)%nat
  -> (l < p)%nat ->
  (A × on_diagonal B) i (r * p + l)%nat = ∑ k < n, A i (r * n + k)%nat * B r k l.
Proof.
  intros Hr Hl. rewrite (sum_ext n _ (fun k => A i (r * n + k)%nat * B ((r * n + k) / n)%nat ((r * n + k) mod n)%nat l))
    by (intros k Hk; now rewrite div_block, mod_block).
  rewrite <- (sum_one_head h n r (fun k => A i k * B (k / n)%nat (k mod n)%nat l) Hr). unfold matmul, on_diagonal.
  apply sum_ext; intros k _. rewrite div_block, mod_block by exact Hl. destruct (Nat.eqb_spec (k / n) r) as [->|]; ring.
Qed.

(** Side by side, times a diagonal of blocks, times W_O: a sum over the heads. *)
Lemma blocks_add_up {h m n p d} (A : tensor [h; m; n]) (B : tensor [h; n; p]) (W_O : tensor [(h * p)%nat; d]) i o :
    (merge A × on_diagonal B × W_O) i o = ∑ r < h, (A.[r] × B.[r] × rows_of W_O r) i o.
Proof.
  unfold matmul at 1. rewrite sum_mul. apply sum_ext; intros r Hr. apply sum_ext; intros l Hl.
  rewrite times_diagonal by assumption. unfold rows_of. f_equal. apply sum_ext; intros k Hk.
  now rewrite merge_at by exact Hk.
Qed.

(** Scores side by side; a product with J puts into each place the sum of its row within its head; and the layer in its
    two forms. *)
Theorem eq_block_forward h n_q n_k d_m d_v d_y (S : tensor [h; n_q; n_k]) (X_v : tensor [n_k; d_m])
    (W_V : tensor [h; d_m; d_v])
    (W_O : tensor [(h * d_v)%nat; d_y]) :
  let P : tensor [h; n_q; n_k] := fun r => softmax everything S.[r] in
  let V : tensor [h; n_k; d_v] := fun r => X_v × W_V.[r] in
  let X : tensor [h; n_q; d_m] := fun r => P.[r] × X_v in
  let exp_S : tensor [n_q; (h * n_k)%nat] := fun i k => exp (merge S i k) in
  let Y : tensor [n_q; d_y] := fun i o => ∑ r < h, (P.[r] × V.[r] × rows_of W_O r) i o in
  equal (merge S) (fun i k => ∑ r < h, (S.[r] × pick h n_k r) i k) /\
  equal (merge P) (fun i k => exp_S i k / (exp_S × ones h n_k) i k) /\
  equal Y (merge P × on_diagonal V × W_O) /\
  equal Y (merge X × on_diagonal W_V × W_O).
Proof.
  intros P V X exp_S Y. split; [|split; [|split]].
  - intros i _ k Hk. simpl. destruct (in_a_head h n_k k Hk) as [r [j [Hr [Hj ->]]]]. rewrite merge_at by exact Hj.
    rewrite (sum_one h r _ Hr).
    + unfold matmul, pick. rewrite (sum_one n_k j); [rewrite δ_same; symmetry; apply Rmult_1_r|exact Hj|].
      intros b _ Hb. rewrite δ_other by lia. apply Rmult_0_r.
    + intros a _ Ha. apply sum_0; intros b Hb. unfold pick. rewrite δ_other; [apply Rmult_0_r|].
      intro E. apply Ha. rewrite <- (div_block n_k a b Hb), E. now apply div_block.
  - intros i _ k Hk. simpl. destruct (in_a_head h n_k k Hk) as [r [j [Hr [Hj ->]]]].
    rewrite merge_at, times_ones by assumption.
    unfold exp_S. rewrite merge_at by exact Hj. unfold P, softmax, Z, E. simpl. f_equal. apply sum_ext; intros b Hb.
    now rewrite merge_at by exact Hb.
  - intros i _ o _. symmetry. exact (blocks_add_up P V W_O i o).
  - intros i _ o _. symmetry. refine (eq_trans (blocks_add_up X W_V W_O i o) _). apply sum_ext; intros r _.
    apply sum_ext; intros l _. f_equal. unfold X, V, part.
    exact (matmul_assoc (P r) X_v (W_V r) i (Nat.lt_succ_diag_r i) l (Nat.lt_succ_diag_r l)).
Qed.

(** *** Algebra of matrices, as equations *)

Lemma assoc {m n p q} (A : tensor [m; n]) (B : tensor [n; p]) (C : tensor [p; q]) : A × B × C = A × (B × C).
Proof.
  apply functional_extensionality; intro i. apply functional_extensionality; intro j.
  exact (matmul_assoc (m := S i) (q := S j) A B C i (Nat.lt_succ_diag_r i) j (Nat.lt_succ_diag_r j)).
Qed.

Lemma scaled_right {m n p} c (A : tensor [m; n]) (B : tensor [n; p]) : A × (c • B) = c • (A × B).
Proof.
  apply functional_extensionality; intro i. apply functional_extensionality; intro j.
  unfold scaled, matmul. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

Lemma scaled_left {m n p} c (A : tensor [m; n]) (B : tensor [n; p]) : (c • A) × B = c • (A × B).
Proof.
  apply functional_extensionality; intro i. apply functional_extensionality; intro j.
  unfold scaled, matmul. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

Lemma sum_moves {h m n} (f : nat -> R -> tensor [m; n]) t (tf : nat -> tensor [m; n]) :
    (forall r, (r < h)%nat -> moves (f r) t (tf r)) ->
  moves (s := [m; n]) (fun u i j => ∑ r < h, f r u i j) t (fun i j => ∑ r < h, tf r i j).
Proof. intros H i Hi j Hj. apply (sum_derive h (fun r u => f r u i j)). intros r Hr. now apply H. Qed.

(** *** The value weights *)

(** The gradient of the value weights of head r. *)
Theorem eq_wild_blocks h n_q n_k d_m d_v d_y (P : tensor [h; n_q; n_k]) (X_v : tensor [n_k; d_m])
    (W_V : tensor [h; d_m; d_v])
    (W_O : tensor [(h * d_v)%nat; d_y]) (ℓ : tensor [n_q; d_y] -> R) (dY : tensor [n_q; d_y]) :
  let Y := (fun W_V i o => ∑ r < h, (P.[r] × (X_v × W_V.[r]) × rows_of W_O r) i o)
    : tensor [h; d_m; d_v] -> tensor [n_q; d_y] in
  gradient ℓ (Y W_V) dY ->
  gradient (fun W_V => ℓ (Y W_V)) W_V (fun r => (P.[r] × X_v)^T × dY × (rows_of W_O r)^T).
Proof.
  intro Y. apply (backward Y W_V Y).
  - intros x t tX _ Ht. apply (sum_moves (fun r u => P.[r] × (X_v × (x u).[r]) × rows_of W_O r)). intros r Hr.
    apply (product_moves_l (fun u => P.[r] × (X_v × (x u).[r]))), (product_moves_r _ (fun u => X_v × (x u).[r])),
      (product_moves_r _ (fun u => (x u).[r])).
    exact (Ht r Hr).
  - intro tX. unfold Y. rewrite (dot_sum_r h dY (fun r => P.[r] × (X_v × tX.[r]) × rows_of W_O r)). simpl.
    apply sum_ext; intros r _.
    change (⟨dY, P.[r] × (X_v × tX.[r]) × rows_of W_O r⟩ = ⟨(P.[r] × X_v)^T × dY × (rows_of W_O r)^T, tX.[r]⟩).
    now rewrite dot_matmul_r, <- assoc, dot_matmul_l, assoc.
Qed.

(** The block of head r on the diagonal. *)
Definition own_block {h m n} (G : tensor [(h * m)%nat; (h * n)%nat]) (r : nat) : tensor [m; n] :=
  fun i l => G (r * m + i)%nat (r * n + l)%nat.

(** Let the blocks on the diagonal move: of the free matrix's gradient G only the diagonal blocks count, and they
    are the gradients of the heads' weights. *)
Theorem eq_block_values h n_q n_k d_m d_v d_y (P : tensor [h; n_q; n_k]) (X_v : tensor [n_k; d_m])
    (tW : tensor [h; d_m; d_v])
    (W_O : tensor [(h * d_v)%nat; d_y]) (dY : tensor [n_q; d_y]) :
  let X : tensor [n_q; (h * d_m)%nat] := merge (fun r => P.[r] × X_v) in
  let G := X^T × dY × W_O^T in
  ⟨dY, X × on_diagonal tW × W_O⟩ = ⟨G, on_diagonal tW⟩ /\
  ⟨G, on_diagonal tW⟩ = (∑ r < h, ⟨own_block G r, tW.[r]⟩) /\
  forall r, equal (s := [d_m; d_v]) (own_block G r) ((P.[r] × X_v)^T × dY × (rows_of W_O r)^T).
Proof.
  intros X G. split; [|split].
  - unfold G. now rewrite dot_matmul_r, dot_matmul_l, assoc.
  - simpl. rewrite sum_mul. apply sum_ext; intros r Hr. apply sum_ext; intros i Hi.
    unfold own_block, part.
    transitivity (∑ l < h * d_v, (if (l / d_v =? r)%nat then G (r * d_m + i)%nat l * tW r i (l mod d_v)%nat else 0)).
    + apply sum_ext; intros l _. unfold on_diagonal. rewrite div_block, mod_block by exact Hi.
      rewrite Nat.eqb_sym. destruct (l / d_v =? r)%nat; ring.
    + rewrite (sum_one_head h d_v r _ Hr). apply sum_ext; intros l Hl. now rewrite mod_block.
  - intros r i Hi l Hl. simpl. unfold own_block, G. apply sum_ext; intros o _. unfold transpose at 2 4, rows_of.
    f_equal.
    apply sum_ext; intros q _. f_equal. unfold transpose, X. now rewrite merge_at.
Qed.

Lemma ones_transposed h n : (ones h n)^T = ones h n.
Proof.
  apply functional_extensionality; intro k. apply functional_extensionality; intro l. unfold transpose, ones.
  now rewrite Nat.eqb_sym.
Qed.

(** Through the weights to the scores, for all heads at once: the two forms are the same, and they are the gradient. *)
Theorem eq_block_dS h n_q n_k d_v d_y (S : tensor [h; n_q; n_k]) (V : tensor [h; n_k; d_v])
    (W_O : tensor [(h * d_v)%nat; d_y])
    (ℓ : tensor [n_q; d_y] -> R) (dY : tensor [n_q; d_y]) :
  let P : tensor [n_q; (h * n_k)%nat] := merge (fun r => softmax everything S.[r]) in
  let exp_S : tensor [n_q; (h * n_k)%nat] := fun i k => exp (merge S i k) in
  let J := ones h n_k in
  let R_ := exp_S × J in
  let dP := dY × W_O^T × (on_diagonal V)^T in
  let over_R : tensor [n_q; (h * n_k)%nat] := fun i k => (dP ∘ P) i k / R_ i k in
  let dS : tensor [n_q; (h * n_k)%nat] := fun i k => P i k * (dP i k - ((dP ∘ P) × J) i k) in
  gradient ℓ (P × on_diagonal V × W_O) dY ->
  gradient (fun P => ℓ (P × on_diagonal V × W_O)) P dP /\
  equal (s := [n_q; (h * n_k)%nat]) (fun i k => (dP ∘ P) i k - (over_R × J^T) i k * exp_S i k) dS /\
  gradient (fun S : tensor [h; n_q; n_k] => ℓ (merge (fun r => softmax everything S.[r]) × on_diagonal V × W_O)) S
    (split dS).
Proof.
  intros P exp_S J R_ dP over_R dS H.
  assert (HP : gradient (fun P => ℓ (P × on_diagonal V × W_O)) P dP).
  { apply (proj1 (eq_matmul_vjp n_q (h * n_k) (h * d_v) P (on_diagonal V) (fun Z => ℓ (Z × W_O)) (dY × W_O^T)
      (proj1 (eq_matmul_vjp n_q (h * d_v) d_y (P × on_diagonal V) W_O ℓ dY H)))). }
  split; [exact HP|]. split.
  - intros i _ k Hk. simpl. destruct (in_a_head h n_k k Hk) as [r [j [Hr [Hj ->]]]]. unfold J. rewrite ones_transposed.
    unfold dS, J. rewrite !times_ones by assumption.
    assert (HR : forall b, (b < n_k)%nat -> R_ i (r * n_k + b)%nat = Z everything S.[r] i).
    { intros b Hb. unfold R_, J. rewrite times_ones by assumption. apply sum_ext; intros a Ha. unfold exp_S.
      now rewrite merge_at. }
    assert (HZ : 0 < Z everything S.[r] i) by (apply (Z_pos everything S.[r] i j Hj); reflexivity).
    rewrite (sum_ext n_k _ (fun b => (dP ∘ P) i (r * n_k + b)%nat / Z everything S.[r] i))
      by (intros b Hb; unfold over_R; now rewrite HR).
    rewrite <- sum_div. set (D := ∑ b < n_k, (dP ∘ P) i (r * n_k + b)%nat). unfold hadamard.
    replace (P i (r * n_k + j)%nat) with (exp_S i (r * n_k + j)%nat / Z everything S.[r] i);
      [field; lra|unfold P, exp_S; now rewrite !merge_at].
  - apply (backward (fun S : tensor [h; n_q; n_k] => merge (fun r => softmax everything S.[r])) S
      (fun tS => merge (fun r => centered (softmax everything S.[r]) tS.[r]))
        (fun P => ℓ (P × on_diagonal V × W_O)) dP); [| |exact HP].
    + intros x t tX Hx Ht. apply (merge_moves (fun u r => softmax everything (x u).[r])). intros r Hr.
      rewrite <- Hx. exact (softmax_moves everything (fun u => (x u).[r]) t tX.[r] (Ht r Hr)).
    + intro tS. rewrite dot_merge. simpl. apply sum_ext; intros r Hr.
      change (⟨(split dP).[r], centered (softmax everything S.[r]) tS.[r]⟩ = ⟨(split dS).[r], tS.[r]⟩).
      rewrite centered_adjoint. apply dot_ext; [|apply equal_refl]. intros i _ j Hj. simpl.
      unfold centered, part, split, dS, J. rewrite times_ones by assumption. unfold P. rewrite merge_at by exact Hj.
      do 2 f_equal. apply sum_ext; intros b Hb. unfold hadamard. rewrite merge_at by exact Hb. apply Rmult_comm.
Qed.

(** *** The weights of queries and keys, and the inputs *)

Definition no_bias {m n} : tensor [m; n] := fun _ _ => 0.

(** Queries, keys and values of all heads, each from one array X: what they send back adds up. *)
Lemma heads_gradient {s} h n_q n_k d_k d_v d_y scale (Q : tensor s -> tensor [h; n_q; d_k])
    (K : tensor s -> tensor [h; n_k; d_k])
    (V : tensor s -> tensor [h; n_k; d_v]) (tQ : tensor s -> tensor [h; n_q; d_k])
    (tK : tensor s -> tensor [h; n_k; d_k])
    (tV : tensor s -> tensor [h; n_k; d_v]) (W_O : tensor [(h * d_v)%nat; d_y])
    (ℓ : tensor [n_q; d_y] -> R) dY (X dX : tensor s) :
  let Y := (fun X i o => ∑ r < h, (attention everything scale (Q X).[r] (K X).[r] (V X).[r] no_bias × rows_of W_O r) i
    o)
    : tensor s -> tensor [n_q; d_y] in
  let P := fun r => weights everything scale (Q X).[r] (K X).[r] no_bias in
  let dO := fun r => dY × (rows_of W_O r)^T in
  let dS := fun r => centered (P r) (dO r × (V X).[r]^T) in
  (forall x t tX, x t = X -> moves x t tX -> forall r, (r < h)%nat ->
    moves (fun u => (Q (x u)).[r]) t (tQ tX).[r] /\ moves (fun u => (K (x u)).[r]) t (tK tX).[r] /\
    moves (fun u => (V (x u)).[r]) t (tV tX).[r]) ->
  (forall tX, ∑ r < h, (⟨scale • (dS r × (K X).[r]), (tQ tX).[r]⟩ + ⟨scale • ((dS r)^T × (Q X).[r]), (tK tX).[r]⟩ +
    ⟨(P r)^T × dO r, (tV tX).[r]⟩) = ⟨dX, tX⟩) ->
  gradient ℓ (Y X) dY -> gradient (fun X => ℓ (Y X)) X dX.
Proof.
  intros Y P dO dS Hjvp Hadj.
  apply (backward Y X (fun tX i o => ∑ r < h,
    (tattention everything scale (Q X).[r] (K X).[r] (V X).[r] no_bias (tQ tX).[r] (tK tX).[r] (tV tX).[r] × rows_of
      W_O r) i o)).
  - intros x t tX Hx Ht.
    apply (sum_moves (fun r u => attention everything scale (Q (x u)).[r] (K (x u)).[r] (V (x u)).[r] no_bias ×
      rows_of W_O r)).
    intros r Hr. apply (product_moves_l (fun u => attention everything scale (Q (x u)).[r] (K (x u)).[r] (V (x u)).[r]
      no_bias)).
    destruct (Hjvp x t tX Hx Ht r Hr) as [HQ [HK HV]].
    pose proof (tattention_moves everything scale (fun u => (Q (x u)).[r]) (fun u => (K (x u)).[r])
      (fun u => (V (x u)).[r])
      no_bias t _ _ _ HQ HK HV) as HA. cbv beta in HA. rewrite Hx in HA. exact HA.
  - intro tX. rewrite <- Hadj.
    rewrite (dot_sum_r h dY (fun r => tattention everything scale (Q X).[r] (K X).[r] (V X).[r] no_bias (tQ tX).[r]
      (tK tX).[r]
      (tV tX).[r] × rows_of W_O r)).
    apply sum_ext; intros r _. rewrite dot_matmul_r. exact
      (tattention_adjoint everything scale _ _ _ no_bias _ _ _ (dO r)).
Qed.

(** A block is picked from either side. *)
Lemma pick_right {h m n p} (A : tensor [h; m; n]) (B : tensor [n; p]) r : (r < h)%nat -> merge A × (pick h n r)^T × B
  = A.[r] × B.
Proof.
  intro Hr. apply functional_extensionality; intro i. apply functional_extensionality; intro c.
  unfold matmul at 1 3. apply sum_ext; intros j Hj. f_equal. unfold matmul, transpose, pick.
  rewrite (sum_ext (h * n) _ (fun k => δ (r * n + j) k * merge A i k)) by (intros; apply Rmult_comm).
  rewrite (sum_δ (h * n) (r * n + j) (merge A i)) by nia. exact (merge_at A i r j Hj).
Qed.

Lemma pick_left {h m n} (A : tensor [h; m; n]) r j i : (r < h)%nat -> (j < n)%nat -> (pick h n r × (merge A)^T) j i
  = A.[r] i j.
Proof.
  intros Hr Hj. unfold matmul, pick. rewrite (sum_δ (h * n) (r * n + j) (fun k => (merge A)^T k i)) by nia.
  exact (merge_at A i r j Hj).
Qed.

Lemma dot_sum_l {m n} h (F : nat -> tensor [m; n]) (A : tensor [m; n]) :
  dot (s := [m; n]) (fun i j => ∑ r < h, F r i j) A = ∑ r < h, ⟨F r, A⟩.
Proof. rewrite dot_comm, dot_sum_r. apply sum_ext; intros. apply dot_comm. Qed.

(** The gradients in the text's order of factors: those of each head's weights, and of the three inputs. *)
Theorem eq_block_dW_QK h n_q n_k d_q d_m d_w d_k d_v d_y scale (X_q : tensor [n_q; d_q]) (X_k : tensor [n_k; d_m])
    (X_v : tensor [n_k; d_w]) (W_Q : tensor [h; d_q; d_k]) (W_K : tensor [h; d_m; d_k]) (W_V : tensor [h; d_w; d_v])
    (W_O : tensor [(h * d_v)%nat; d_y]) (ℓ : tensor [n_q; d_y] -> R) (dY : tensor [n_q; d_y]) :
  let Y := (fun X_q X_k X_v (W_Q : tensor [h; d_q; d_k]) (W_K : tensor [h; d_m; d_k]) i o => ∑ r < h,
      (attention everything scale (X_q × W_Q.[r]) (X_k × W_K.[r]) (X_v × W_V.[r]) no_bias × rows_of W_O r) i o)
    : tensor [n_q; d_q] -> tensor [n_k; d_m] -> tensor [n_k; d_w] -> _ -> _ -> tensor [n_q; d_y] in
  let P : tensor [h; n_q; n_k] := fun r => weights everything scale (X_q × W_Q.[r]) (X_k × W_K.[r]) no_bias in
  let dP : tensor [h; n_q; n_k] := fun r => dY × (rows_of W_O r)^T × (X_v × W_V.[r])^T in
  let dS : tensor [n_q; (h * n_k)%nat] := merge (fun r i j => P r i j * (dP r i j - ∑ k < n_k, P r i k * dP r i k)) in
  let E := pick h n_k in
  gradient ℓ (Y X_q X_k X_v W_Q W_K) dY ->
  gradient (fun W_Q => ℓ (Y X_q X_k X_v W_Q W_K)) W_Q (fun r => scale • (X_q^T × dS × (E r)^T × X_k × W_K.[r])) /\
  gradient (fun W_K => ℓ (Y X_q X_k X_v W_Q W_K)) W_K (fun r => scale • (X_k^T × E r × dS^T × X_q × W_Q.[r])) /\
  gradient (fun X_q => ℓ (Y X_q X_k X_v W_Q W_K)) X_q
    (fun i a => scale * ∑ r < h, (dS × (E r)^T × X_k × W_K.[r] × (W_Q.[r])^T) i a) /\
  gradient (fun X_k => ℓ (Y X_q X_k X_v W_Q W_K)) X_k
    (fun j a => scale * ∑ r < h, (E r × dS^T × X_q × W_Q.[r] × (W_K.[r])^T) j a) /\
  gradient (fun X_v => ℓ (Y X_q X_k X_v W_Q W_K)) X_v
    (fun j a => ∑ r < h, (P.[r]^T × dY × (rows_of W_O r)^T × (W_V.[r])^T) j a).
Proof.
  intros Y P dP dS E H.
  set (dS_ := (fun r => centered P.[r] dP.[r]) : tensor [h; n_q; n_k]).
  assert (HR : forall r p (B : tensor [n_k; p]), (r < h)%nat -> dS × (E r)^T × B = dS_.[r] × B)
    by (intros r p B Hr; exact (pick_right dS_ B r Hr)).
  assert (HL : forall r p (B : tensor [n_q; p]) j a, (r < h)%nat -> (j < n_k)%nat -> (E r × dS^T × B) j a
    = (dS_.[r]^T × B) j a).
  { intros r p B j a Hr Hj. apply sum_ext; intros i _. f_equal. exact (pick_left dS_ r j i Hr Hj). }
  assert (HL' : forall r p q (C : tensor [n_k; q]) (B : tensor [n_q; p]), (r < h)%nat -> C^T × E r × dS^T × B
    = C^T × (dS_.[r]^T × B)).
  { intros r p q C B Hr. rewrite !assoc. apply functional_extensionality; intro a.
    apply functional_extensionality; intro b.
    apply sum_ext; intros j Hj. f_equal. rewrite <- assoc. exact (HL r p B j b Hr Hj). }
  pose (Q0 := (fun r => X_q × W_Q.[r]) : tensor [h; n_q; d_k]).
  pose (K0 := (fun r => X_k × W_K.[r]) : tensor [h; n_k; d_k]).
  pose (V0 := (fun r => X_v × W_V.[r]) : tensor [h; n_k; d_v]).
  assert (cQ : forall t r, moves (fun _ => Q0.[r]) t zero) by (intros t r; exact (moves_const Q0.[r] t)).
  assert (cK : forall t r, moves (fun _ => K0.[r]) t zero) by (intros t r; exact (moves_const K0.[r] t)).
  assert (cV : forall t r, moves (fun _ => V0.[r]) t zero) by (intros t r; exact (moves_const V0.[r] t)).
  split; [|split; [|split; [|split]]].
  - refine (heads_gradient h n_q n_k d_k d_v d_y scale (fun W r => X_q × W.[r]) (fun _ => K0) (fun _ => V0)
      (fun tW r => X_q × tW.[r]) (fun _ => zero) (fun _ => zero) W_O ℓ dY W_Q _ _ _ H).
    + intros x t tX _ Ht r Hr. split; [|exact (conj (cK t r) (cV t r))]. apply (product_moves_r X_q (fun u => (x u).[r])).
      exact (Ht r Hr).
    + intro tX. change (@dot [h; d_q; d_k]) with (fun A B : tensor [h; d_q; d_k] => ∑ r < h, ⟨A.[r], B.[r]⟩). cbv beta.
      apply sum_ext; intros r Hr.
      change (⟨scale • (dS_.[r] × K0.[r]), X_q × tX.[r]⟩ + ⟨scale • (dS_.[r]^T × (X_q × W_Q.[r])), zero⟩ +
        ⟨P.[r]^T × (dY × (rows_of W_O r)^T), zero⟩ = ⟨scale • (X_q^T × dS × (E r)^T × X_k × W_K.[r]), tX.[r]⟩).
      rewrite !dot_zero, dot_matmul_l, scaled_right, (assoc _ X_k), (assoc _ (E r)^T), (assoc X_q^T), <- (assoc dS),
        (HR r _ _ Hr).
      unfold K0, part. ring.
  - refine (heads_gradient h n_q n_k d_k d_v d_y scale (fun _ => Q0) (fun W r => X_k × W.[r]) (fun _ => V0)
      (fun _ => zero) (fun tW r => X_k × tW.[r]) (fun _ => zero) W_O ℓ dY W_K _ _ _ H).
    + intros x t tX _ Ht r Hr. split; [exact (cQ t r)|split; [|exact (cV t r)]].
      apply (product_moves_r X_k (fun u => (x u).[r])). exact (Ht r Hr).
    + intro tX. change (@dot [h; d_m; d_k]) with (fun A B : tensor [h; d_m; d_k] => ∑ r < h, ⟨A.[r], B.[r]⟩). cbv beta.
      apply sum_ext; intros r Hr.
      change (⟨scale • (dS_.[r] × K0.[r]), zero⟩ + ⟨scale • (dS_.[r]^T × Q0.[r]),
        X_k × tX.[r]⟩ + ⟨P.[r]^T × (dY × (rows_of W_O r)^T), zero⟩
        = ⟨scale • (X_k^T × E r × dS^T × X_q × W_Q.[r]), tX.[r]⟩).
      rewrite !dot_zero, dot_matmul_l, scaled_right, (assoc _ X_q), (HL' r _ _ X_k _ Hr). unfold Q0, part. ring.
  - refine (heads_gradient h n_q n_k d_k d_v d_y scale (fun X r => X × W_Q.[r]) (fun _ => K0) (fun _ => V0)
      (fun tX r => tX × W_Q.[r]) (fun _ => zero) (fun _ => zero) W_O ℓ dY X_q _ _ _ H).
    + intros x t tX _ Ht r Hr. split; [|exact (conj (cK t r) (cV t r))]. exact (product_moves_l x W_Q.[r] t tX Ht).
    + intro tX.
      change (fun i a => scale * ∑ r < h, (dS × (E r)^T × X_k × W_K.[r] × (W_Q.[r])^T) i a)
        with (scale • ((fun i a => ∑ r < h, (dS × (E r)^T × X_k × W_K.[r] × (W_Q.[r])^T) i a) : tensor [n_q; d_q])).
      rewrite dot_scaled_l, (dot_sum_l h (fun r => dS × (E r)^T × X_k × W_K.[r] × (W_Q.[r])^T)), sum_l.
      apply sum_ext; intros r Hr.
      change (⟨scale • (dS_.[r] × K0.[r]), tX × W_Q.[r]⟩ + ⟨scale • (dS_.[r]^T × (X_q × W_Q.[r])),
        zero⟩ + ⟨P.[r]^T × (dY × (rows_of W_O r)^T), zero⟩
        = scale * ⟨dS × (E r)^T × X_k × W_K.[r] × (W_Q.[r])^T, tX⟩).
      rewrite !dot_zero, dot_scaled_l, dot_matmul_r, (assoc _ X_k), (HR r _ _ Hr). unfold K0, part. ring.
  - refine (heads_gradient h n_q n_k d_k d_v d_y scale (fun _ => Q0) (fun X r => X × W_K.[r]) (fun _ => V0)
      (fun _ => zero) (fun tX r => tX × W_K.[r]) (fun _ => zero) W_O ℓ dY X_k _ _ _ H).
    + intros x t tX _ Ht r Hr. split; [exact (cQ t r)|split; [|exact (cV t r)]]. exact (product_moves_l x W_K.[r] t tX Ht).
    + intro tX.
      change (fun i a => scale * ∑ r < h, (E r × dS^T × X_q × W_Q.[r] × (W_K.[r])^T) i a)
        with (scale • ((fun i a => ∑ r < h, (E r × dS^T × X_q × W_Q.[r] × (W_K.[r])^T) i a) : tensor [n_k; d_m])).
      rewrite dot_scaled_l, (dot_sum_l h (fun r => E r × dS^T × X_q × W_Q.[r] × (W_K.[r])^T)), sum_l.
      apply sum_ext; intros r Hr.
      change (⟨scale • (dS_.[r] × (X_k × W_K.[r])), zero⟩ + ⟨scale • (dS_.[r]^T × Q0.[r]),
        tX × W_K.[r]⟩ + ⟨P.[r]^T × (dY × (rows_of W_O r)^T), zero⟩
        = scale * ⟨E r × dS^T × X_q × W_Q.[r] × (W_K.[r])^T, tX⟩).
      rewrite !dot_zero, dot_scaled_l, dot_matmul_r.
      replace ⟨E r × dS^T × X_q × W_Q.[r] × (W_K.[r])^T, tX⟩ with ⟨dS_.[r]^T × Q0.[r] × (W_K.[r])^T, tX⟩; [ring|].
      apply dot_ext; [|apply equal_refl]. rewrite !assoc. rewrite <- (assoc (E r)). intros j Hj a _.
      refine (eq_trans _ (eq_sym (HL r _ _ j a Hr Hj))). unfold Q0, part. now rewrite !assoc.
  - refine (heads_gradient h n_q n_k d_k d_v d_y scale (fun _ => Q0) (fun _ => K0) (fun X r => X × W_V.[r])
      (fun _ => zero) (fun _ => zero) (fun tX r => tX × W_V.[r]) W_O ℓ dY X_v _ _ _ H).
    + intros x t tX _ Ht r Hr. split; [exact (cQ t r)|split; [exact (cK t r)|]]. exact (product_moves_l x W_V.[r] t tX Ht).
    + intro tX. rewrite (dot_sum_l h (fun r => P.[r]^T × dY × (rows_of W_O r)^T × (W_V.[r])^T)).
      apply sum_ext; intros r Hr.
      change (⟨scale • (dS_.[r] × K0.[r]), zero⟩ + ⟨scale • (dS_.[r]^T × Q0.[r]),
        zero⟩ + ⟨P.[r]^T × (dY × (rows_of W_O r)^T), tX × W_V.[r]⟩
        = ⟨P.[r]^T × dY × (rows_of W_O r)^T × (W_V.[r])^T, tX⟩).
      rewrite !dot_zero, dot_matmul_r, <- !assoc. ring.
Qed.
