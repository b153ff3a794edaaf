(** * Products, sums and broadcasts (chapter 2)

    What attention is made of besides softmax. All of it is linear in each of its inputs. *)

From attnbook Require Export calculus.

(** ** Matrices *)

Definition matmul {m n p} (A : tensor [m; n]) (B : tensor [n; p]) : tensor [m; p] := fun i j => ∑ k < n, A i k * B k j.
Definition transpose {m n} (A : tensor [m; n]) : tensor [n; m] := fun j i => A i j.
Definition hadamard {m n} (A B : tensor [m; n]) : tensor [m; n] := fun i j => A i j * B i j.
Definition add {m n} (A B : tensor [m; n]) : tensor [m; n] := fun i j => A i j + B i j.
Definition scaled {m n} (c : R) (A : tensor [m; n]) : tensor [m; n] := fun i j => c * A i j.
Definition rowsum {m n} (A : tensor [m; n]) : tensor [m] := fun i => ∑ j < n, A i j.
Definition colsum {m n} (A : tensor [m; n]) : tensor [n] := fun j => ∑ i < m, A i j.

Notation "A × B" := (matmul A B) (at level 40, left associativity).
Notation "A ^T" := (transpose A) (at level 8, format "A ^T").
Notation "A ∘ B" := (hadamard A B) (at level 40, left associativity).
Notation "A ⊕ B" := (add A B) (at level 50, left associativity).
Notation "c • A" := (scaled c A) (at level 39, right associativity).

(** The four moves of an inner product. *)

Lemma dot_matmul_l {m n p} (A : tensor [m; p]) (B : tensor [m; n]) (C : tensor [n; p]) :
  ⟨A, B × C⟩ = ⟨B^T × A, C⟩.
Proof.
  unfold matmul, transpose. simpl.
  transitivity (∑ i < m, ∑ k < n, ∑ j < p, A i j * (B i k * C k j)).
  { apply sum_ext; intros. rewrite sum_swap. apply sum_ext; intros. now rewrite sum_l. }
  rewrite sum_swap. apply sum_ext; intros k _. rewrite sum_swap. apply sum_ext; intros j _.
  rewrite sum_r. apply sum_ext; intros. ring.
Qed.

Lemma dot_matmul_r {m n p} (A : tensor [m; p]) (B : tensor [m; n]) (C : tensor [n; p]) :
  ⟨A, B × C⟩ = ⟨A × C^T, B⟩.
Proof.
  unfold matmul, transpose. simpl. apply sum_ext; intros i _.
  transitivity (∑ k < n, ∑ j < p, A i j * (B i k * C k j)).
  { rewrite sum_swap. apply sum_ext; intros. now rewrite sum_l. }
  apply sum_ext; intros k _. rewrite sum_r. apply sum_ext; intros. ring.
Qed.

Lemma dot_hadamard {m n} (A B C : tensor [m; n]) : ⟨A, B ∘ C⟩ = ⟨A ∘ B, C⟩.
Proof. unfold hadamard. simpl. apply sum_ext; intros. apply sum_ext; intros. ring. Qed.

Lemma dot_transpose {m n} (A : tensor [n; m]) (B : tensor [m; n]) : ⟨A, B^T⟩ = ⟨A^T, B⟩.
Proof. unfold transpose. simpl. apply sum_swap. Qed.

Lemma dot_add_r {m n} (A B C : tensor [m; n]) : ⟨A, B ⊕ C⟩ = ⟨A, B⟩ + ⟨A, C⟩.
Proof.
  unfold add. simpl. rewrite <- sum_plus. apply sum_ext; intros. rewrite <- sum_plus. apply sum_ext; intros. ring.
Qed.

Lemma dot_add_l {m n} (A B C : tensor [m; n]) : ⟨A ⊕ B, C⟩ = ⟨A, C⟩ + ⟨B, C⟩.
Proof. rewrite dot_comm, dot_add_r, (dot_comm C A), (dot_comm C B). reflexivity. Qed.

Lemma dot_scaled_r {m n} c (A B : tensor [m; n]) : ⟨A, c • B⟩ = c * ⟨A, B⟩.
Proof. unfold scaled. simpl. rewrite sum_l. apply sum_ext; intros. rewrite sum_l. apply sum_ext; intros. ring. Qed.

Lemma dot_scaled_l {m n} c (A B : tensor [m; n]) : ⟨c • A, B⟩ = c * ⟨A, B⟩.
Proof. rewrite dot_comm, dot_scaled_r, dot_comm. reflexivity. Qed.

Lemma transpose_matmul {m n p} (A : tensor [m; n]) (B : tensor [n; p]) : equal ((A × B)^T) (B^T × A^T).
Proof. unfold matmul, transpose. intros j _ i _. simpl. apply sum_ext; intros. ring. Qed.

Lemma matmul_assoc {m n p q} (A : tensor [m; n]) (B : tensor [n; p]) (C : tensor [p; q]) : equal (A × B × C) (A × (B × C)).
Proof.
  unfold matmul. intros i _ j _. simpl.
  transitivity (∑ k < p, ∑ l < n, A i l * B l k * C k j); [apply sum_ext; intros; apply sum_r|].
  rewrite sum_swap. apply sum_ext; intros. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

(** ** How they move *)

Lemma matmul_moves {m n p} (a : R -> tensor [m; n]) (b : R -> tensor [n; p]) t tA tB :
  moves a t tA -> moves b t tB -> moves (s := [m; p]) (fun u => a u × b u) t (tA × b t ⊕ a t × tB).
Proof.
  intros HA HB i Hi j Hj. unfold matmul, add. rewrite <- sum_plus. apply (sum_derive n (fun k u => a u i k * b u k j)).
  intros k Hk. apply derive_mult; [now apply HA|now apply HB].
Qed.

Lemma transpose_moves {m n} (a : R -> tensor [m; n]) t tA : moves a t tA -> moves (s := [n; m]) (fun u => (a u)^T) t (tA^T).
Proof. intros H i Hi j Hj. now apply H. Qed.

Lemma add_moves {m n} (a b : R -> tensor [m; n]) t tA tB :
  moves a t tA -> moves b t tB -> moves (s := [m; n]) (fun u => a u ⊕ b u) t (tA ⊕ tB).
Proof. intros HA HB i Hi j Hj. apply (derive_plus (fun u => a u i j)); [now apply HA|now apply HB]. Qed.

Lemma scaled_moves {m n} c (a : R -> tensor [m; n]) t tA : moves a t tA -> moves (s := [m; n]) (fun u => c • a u) t (c • tA).
Proof. intros HA i Hi j Hj. apply (derive_scale c (fun u => a u i j)). now apply HA. Qed.

Lemma hadamard_moves {m n} (a b : R -> tensor [m; n]) t tA tB :
  moves a t tA -> moves b t tB -> moves (s := [m; n]) (fun u => a u ∘ b u) t (tA ∘ b t ⊕ a t ∘ tB).
Proof. intros HA HB i Hi j Hj. apply (derive_mult (fun u => a u i j)); [now apply HA|now apply HB]. Qed.

(** ** The chapter's theorems *)

(** A product moves by each factor in turn. *)
Theorem eq_matmul_jvp m n p (a : R -> tensor [m; n]) (b : R -> tensor [n; p]) t tA tB :
  moves a t tA -> moves b t tB -> moves (s := [m; p]) (fun u => a u × b u) t (tA × b t ⊕ a t × tB).
Proof. apply matmul_moves. Qed.

(** For Y = A B: if dY is the gradient of any loss at Y, then dY Bᵀ is its gradient at A, and Aᵀ dY its gradient at B. *)
Theorem eq_matmul_vjp m n p (A : tensor [m; n]) (B : tensor [n; p]) (ℓ : tensor [m; p] -> R) (dY : tensor [m; p]) :
  gradient ℓ (A × B) dY ->
  gradient (fun A => ℓ (A × B)) A (dY × B^T) /\ gradient (fun B => ℓ (A × B)) B (A^T × dY).
Proof.
  intro Hℓ. split.
  - apply (backward (fun A => A × B) A (fun tA => tA × B) ℓ dY); [|intro; now rewrite dot_matmul_r|exact Hℓ].
    intros x t tA _ Ht i Hi j Hj. apply (sum_derive n (fun k u => x u i k * B k j)). intros k Hk.
    eapply derive_eq; [apply derive_mult; [now apply Ht|apply derive_const]|cbv beta; ring].
  - apply (backward (fun B => A × B) B (fun tB => A × tB) ℓ dY); [|intro; now rewrite dot_matmul_l|exact Hℓ].
    intros x t tB _ Ht i Hi j Hj. apply (sum_derive n (fun k u => A i k * x u k j)). intros k Hk.
    apply (derive_scale (A i k) (fun u => x u k j)). now apply Ht.
Qed.

(** ** The linear layer *)

(** Y = X W + 1 b: every row is multiplied by the same matrix, and gets the same bias. *)
Definition linear {n d p} (X : tensor [n; d]) (W : tensor [d; p]) (b : tensor [p]) : tensor [n; p] :=
  fun i j => (X × W) i j + b j.

Lemma linear_moves {n d p} (x : R -> tensor [n; d]) (w : R -> tensor [d; p]) (b : R -> tensor [p]) t tX tW tb :
  moves x t tX -> moves w t tW -> moves b t tb ->
  moves (s := [n; p]) (fun u => linear (x u) (w u) (b u)) t (fun i j => (tX × w t) i j + (x t × tW) i j + tb j).
Proof.
  intros HX HW Hb i Hi j Hj. unfold linear. apply (derive_plus (fun u => (x u × w u) i j) (fun u => b u j)); [|now apply Hb].
  now apply (matmul_moves x w).
Qed.

Lemma dot_rows {m n} (A : tensor [m; n]) (b : tensor [n]) : dot (s := [m; n]) A (fun _ j => b j) = ⟨colsum A, b⟩.
Proof. unfold colsum. simpl. rewrite sum_swap. apply sum_ext; intros. now rewrite sum_r. Qed.

Lemma linear_adjoint {n d p} (dY : tensor [n; p]) (X : tensor [n; d]) (W : tensor [d; p]) tX tW tb :
  dot (s := [n; p]) dY (fun i j => (tX × W) i j + (X × tW) i j + tb j) = ⟨dY × W^T, tX⟩ + ⟨X^T × dY, tW⟩ + ⟨colsum dY, tb⟩.
Proof.
  change (⟨dY, (tX × W ⊕ X × tW) ⊕ (fun _ j => tb j)⟩ = ⟨dY × W^T, tX⟩ + ⟨X^T × dY, tW⟩ + ⟨colsum dY, tb⟩).
  rewrite !dot_add_r, (dot_matmul_r dY tX), (dot_matmul_l dY X). f_equal. apply dot_rows.
Qed.

(** A linear layer moves by its input, its matrix and its bias. *)
Theorem eq_linear_jvp n d p (X : R -> tensor [n; d]) (W : R -> tensor [d; p]) (b : R -> tensor [p]) t tX tW tb :
  moves X t tX -> moves W t tW -> moves b t tb ->
  moves (s := [n; p]) (fun u => linear (X u) (W u) (b u)) t (fun i j => (tX × W t) i j + (X t × tW) i j + tb j).
Proof. apply linear_moves. Qed.

(** Backwards through a linear layer: the input gets dY Wᵀ, the matrix Xᵀ dY, the bias the sum over the rows of dY. *)
Theorem eq_linear_vjp n d p (X : tensor [n; d]) (W : tensor [d; p]) (b : tensor [p]) (ℓ : tensor [n; p] -> R)
    (dY : tensor [n; p]) :
  gradient ℓ (linear X W b) dY ->
  gradient (fun X => ℓ (linear X W b)) X (dY × W^T) /\
  gradient (fun W => ℓ (linear X W b)) W (X^T × dY) /\
  gradient (fun b => ℓ (linear X W b)) b (fun j => ∑ i < n, dY i j).
Proof.
  intro H. split; [|split]; intros x t tx Hx Ht.
  - eapply derive_eq; [apply (H (fun u => linear (x u) W b)); [now rewrite Hx|]|].
    + apply (linear_moves x (fun _ => W) (fun _ => b) t tx zero zero Ht (moves_const _ _) (moves_const _ _)).
    + cbv beta. rewrite linear_adjoint, !dot_zero. ring.
  - eapply derive_eq; [apply (H (fun u => linear X (x u) b)); [now rewrite Hx|]|].
    + apply (linear_moves (fun _ => X) x (fun _ => b) t zero tx zero (moves_const _ _) Ht (moves_const _ _)).
    + cbv beta. rewrite linear_adjoint, !dot_zero. ring.
  - eapply derive_eq; [apply (H (fun u => linear X W (x u))); [now rewrite Hx|]|].
    + apply (linear_moves (fun _ => X) (fun _ => W) x t zero zero tx (moves_const _ _) (moves_const _ _) Ht).
    + cbv beta. rewrite linear_adjoint, !dot_zero. unfold colsum. ring.
Qed.

(** The product Xᵀ dY is a sum over the rows: each token adds one outer product of its input and its gradient. *)
Theorem eq_linear_row_sum n d p (X : tensor [n; d]) (W : tensor [d; p]) (b : tensor [p]) (ℓ : tensor [n; p] -> R)
    (dY : tensor [n; p]) :
  gradient ℓ (linear X W b) dY ->
  gradient (fun W => ℓ (linear X W b)) W (fun k l => ∑ i < n, X i k * dY i l).
Proof. intro H. exact (proj1 (proj2 (eq_linear_vjp n d p X W b ℓ dY H))). Qed.

(** ** Moving numbers *)

Lemma gradient_transpose {m n} (A : tensor [m; n]) (ℓ : tensor [n; m] -> R) (dY : tensor [n; m]) :
  gradient ℓ (A^T) dY -> gradient (fun A => ℓ (A^T)) A (dY^T).
Proof.
  apply (backward transpose A transpose ℓ dY); [intros x t tX _; apply transpose_moves|].
  intro tX. apply dot_transpose.
Qed.

(** ** One entry alone *)

(** The array that is 1 at (k, l) and 0 elsewhere. Moving along it is moving one entry. *)
Definition unit {m n} (k l : nat) : tensor [m; n] := fun i j => δ k i * δ l j.

Lemma dot_unit {m n} (G : tensor [m; n]) k l : (k < m)%nat -> (l < n)%nat -> ⟨G, unit k l⟩ = G k l.
Proof.
  intros Hk Hl. simpl. unfold unit.
  transitivity (∑ i < m, δ k i * ∑ j < n, δ l j * G i j).
  { apply sum_ext; intros i _. rewrite sum_l. apply sum_ext; intros. ring. }
  rewrite (sum_δ m k (fun i => ∑ j < n, δ l j * G i j)) by exact Hk. now apply (sum_δ n l (G k)).
Qed.

Lemma scaled_backward {m n} c (A : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dY : tensor [m; n]) :
  gradient ℓ (c • A) dY ->
  gradient (fun A => ℓ (c • A)) A (c • dY) /\ gradient (s := []) (fun c => ℓ (c • A)) c (∑ i < m, ∑ j < n, A i j * dY i j).
Proof.
  intro H. split.
  - apply (backward (fun A => c • A) A (fun tA => c • tA) ℓ dY); [intros x t tX _; apply scaled_moves| |exact H].
    intro tA. now rewrite dot_scaled_r, dot_scaled_l.
  - intros x t tc Hx Ht. eapply derive_eq; [apply (H (fun u => x u • A) t (tc • A)); [now rewrite Hx|]|].
    + intros i Hi j Hj. unfold scaled. eapply derive_eq; [apply derive_mult; [exact Ht|apply derive_const]|cbv beta; ring].
    + rewrite dot_scaled_r, (dot_comm dY). simpl. apply Rmult_comm.
Qed.
