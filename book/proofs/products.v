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

Lemma matmul_assoc {m n p q} (A : tensor [m; n]) (B : tensor [n; p]) (C : tensor [p; q]) :
  equal (A × B × C) (A × (B × C)).
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

(** How a product moves when one factor stays. *)
Lemma product_moves_l {m n p} (a : R -> tensor [m; n]) (B : tensor [n; p]) t tA :
  moves a t tA -> moves (s := [m; p]) (fun u => a u × B) t (tA × B).
Proof.
  intros H i Hi j Hj. apply (sum_derive n (fun k u => a u i k * B k j)). intros k Hk.
  eapply derive_eq; [apply derive_mult; [now apply H|apply derive_const]|cbv beta; ring].
Qed.

Lemma product_moves_r {m n p} (A : tensor [m; n]) (b : R -> tensor [n; p]) t tB :
  moves b t tB -> moves (s := [m; p]) (fun u => A × b u) t (A × tB).
Proof.
  intros H i Hi j Hj. apply (sum_derive n (fun k u => A i k * b u k j)). intros k Hk.
  apply (derive_scale (A i k) (fun u => b u k j)). now apply H.
Qed.

Lemma transpose_moves {m n} (a : R -> tensor [m; n]) t tA : moves a t tA ->
  moves (s := [n; m]) (fun u => (a u)^T) t (tA^T).
Proof. intros H i Hi j Hj. now apply H. Qed.

Lemma add_moves {m n} (a b : R -> tensor [m; n]) t tA tB :
  moves a t tA -> moves b t tB -> moves (s := [m; n]) (fun u => a u ⊕ b u) t (tA ⊕ tB).
Proof. intros HA HB i Hi j Hj. apply (derive_plus (fun u => a u i j)); [now apply HA|now apply HB]. Qed.

Lemma scaled_moves {m n} c (a : R -> tensor [m; n]) t tA : moves a t tA ->
  moves (s := [m; n]) (fun u => c • a u) t (c • tA).
Proof. intros HA i Hi j Hj. apply (derive_scale c (fun u => a u i j)). now apply HA. Qed.

Lemma hadamard_moves {m n} (a b : R -> tensor [m; n]) t tA tB :
  moves a t tA -> moves b t tB -> moves (s := [m; n]) (fun u => a u ∘ b u) t (tA ∘ b t ⊕ a t ∘ tB).
Proof. intros HA HB i Hi j Hj. apply (derive_mult (fun u => a u i j)); [now apply HA|now apply HB]. Qed.

(** ** The chapter's theorems *)

(** A product moves by each factor in turn. *)
Theorem eq_matmul_jvp m n p (a : R -> tensor [m; n]) (b : R -> tensor [n; p]) t tA tB :
  moves a t tA -> moves b t tB -> moves (s := [m; p]) (fun u => a u × b u) t (tA × b t ⊕ a t × tB).
Proof. apply matmul_moves. Qed.

(** The change of a product, paired with dY: each tangent stands alone, beside its gradient. *)
Theorem step_matmul m n p (A tA : tensor [m; n]) (B tB : tensor [n; p]) (dY : tensor [m; p]) :
  ⟨dY, tA × B ⊕ A × tB⟩ = ⟨dY × B^T, tA⟩ + ⟨A^T × dY, tB⟩.
Proof. now rewrite dot_add_r, (dot_matmul_r dY tA), (dot_matmul_l dY A). Qed.

(** For Y = A B: if dY is the gradient of any loss at Y, then dY Bᵀ is its gradient at A, and Aᵀ dY its gradient at
    B. *)
Theorem eq_matmul_vjp m n p (A : tensor [m; n]) (B : tensor [n; p]) (ℓ : tensor [m; p] -> R) (dY : tensor [m; p]) :
  gradient ℓ (A × B) dY ->
  gradient (fun A => ℓ (A × B)) A (dY × B^T) /\ gradient (fun B => ℓ (A × B)) B (A^T × dY).
Proof.
  intro Hℓ. split.
  - apply (backward (fun A => A × B) A (fun tA => tA × B) ℓ dY); [|intro; now rewrite dot_matmul_r|exact Hℓ].
    intros x t tA _ Ht. exact (product_moves_l x B t tA Ht).
  - apply (backward (fun B => A × B) B (fun tB => A × tB) ℓ dY); [|intro; now rewrite dot_matmul_l|exact Hℓ].
    intros x t tB _ Ht. exact (product_moves_r A x t tB Ht).
Qed.

(** ** The linear layer *)

(** Y = X W + 1 b: every row is multiplied by the same matrix, and gets the same bias. *)
Definition linear {n d p} (X : tensor [n; d]) (W : tensor [d; p]) (b : tensor [p]) : tensor [n; p] :=
  fun i j => (X × W) i j + b j.

Lemma linear_moves {n d p} (x : R -> tensor [n; d]) (w : R -> tensor [d; p]) (b : R -> tensor [p]) t tX tW tb :
  moves x t tX -> moves w t tW -> moves b t tb ->
  moves (s := [n; p]) (fun u => linear (x u) (w u) (b u)) t (fun i j => (tX × w t) i j + (x t × tW) i j + tb j).
Proof.
  intros HX HW Hb i Hi j Hj. unfold linear.
  apply (derive_plus (fun u => (x u × w u) i j) (fun u => b u j)); [|now apply Hb].
  now apply (matmul_moves x w).
Qed.

Lemma dot_rows {m n} (A : tensor [m; n]) (b : tensor [n]) : dot (s := [m; n]) A (fun _ j => b j) = ⟨colsum A, b⟩.
Proof. unfold colsum. simpl. rewrite sum_swap. apply sum_ext; intros. now rewrite sum_r. Qed.

Lemma linear_adjoint {n d p} (dY : tensor [n; p]) (X : tensor [n; d]) (W : tensor [d; p]) tX tW tb :
  dot (s := [n; p]) dY (fun i j => (tX × W) i j + (X × tW) i j + tb j) = ⟨dY × W^T, tX⟩ + ⟨X^T × dY, tW⟩
    + ⟨colsum dY, tb⟩.
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
  gradient (fun A => ℓ (c • A)) A (c • dY) /\
    gradient (s := []) (fun c => ℓ (c • A)) c (∑ i < m, ∑ j < n, A i j * dY i j).
Proof.
  intro H. split.
  - apply (backward (fun A => c • A) A (fun tA => c • tA) ℓ dY); [intros x t tX _; apply scaled_moves| |exact H].
    intro tA. now rewrite dot_scaled_r, dot_scaled_l.
  - intros x t tc Hx Ht. eapply derive_eq; [apply (H (fun u => x u • A) t (tc • A)); [now rewrite Hx|]|].
    + intros i Hi j Hj. unfold scaled.
      eapply derive_eq; [apply derive_mult; [exact Ht|apply derive_const]|cbv beta; ring].
    + rewrite dot_scaled_r, (dot_comm dY). simpl. apply Rmult_comm.
Qed.

(** ** What a gradient is *)

(** If a loss has a gradient, each of its entries is the partial derivative of the loss with respect to that entry.
    This way only: partial derivatives alone make no gradient. *)
Theorem def_gradient m n (ℓ : tensor [m; n] -> R) (X dX : tensor [m; n]) i j :
  gradient ℓ X dX -> (i < m)%nat -> (j < n)%nat -> is_derive (fun u => ℓ (along X u (unit i j))) 0 (dX i j).
Proof. intros H Hi Hj. rewrite <- (dot_unit dX i j Hi Hj). now apply gradient_along. Qed.

Lemma gradient_entries {m n} (ℓ : tensor [m; n] -> R) (X A B : tensor [m; n]) i j :
  gradient ℓ X A -> gradient ℓ X B -> (i < m)%nat -> (j < n)%nat -> A i j = B i j.
Proof.
  intros HA HB Hi Hj. rewrite <- (dot_unit A), <- (dot_unit B) by assumption. exact (gradient_unique ℓ X A B _ HA HB).
Qed.

(** Backwards through any Y = F(X), with J the partial derivatives of the entries of Y by X_ij: dX_ij is the sum of dY
    J, for any loss with the gradients dY at Y and dX at X. *)
Theorem def_vjp m n p q (F : tensor [m; n] -> tensor [p; q]) (X dX : tensor [m; n]) (ℓ : tensor [p; q] -> R)
    (dY J : tensor [p; q]) i j :
  gradient ℓ (F X) dY -> gradient (fun X => ℓ (F X)) X dX -> (i < m)%nat -> (j < n)%nat ->
  (forall k l, (k < p)%nat -> (l < q)%nat -> is_derive (fun u => F (along X u (unit i j)) k l) 0 (J k l)) ->
  dX i j = ∑ k < p, ∑ l < q, dY k l * J k l.
Proof.
  intros HY HX Hi Hj HJ. pose proof (def_gradient m n _ X dX i j HX Hi Hj) as H1.
  assert (H2 : is_derive (fun u => ℓ (F (along X u (unit i j)))) 0 ⟨dY, J⟩).
  { apply (HY (fun u => F (along X u (unit i j)))); [now rewrite along_0|]. intros k Hk l Hl. now apply HJ. }
  apply is_derive_unique in H1, H2. cbv beta in H1. rewrite H2 in H1. symmetry. exact H1.
Qed.

(** When X moves with the speed tX, the loss changes at the rate ⟨dX, tX⟩: along any curve, and along a straight
    line. *)
Theorem eq_first_order m n (ℓ : tensor [m; n] -> R) (X dX tX : tensor [m; n]) :
  gradient ℓ X dX ->
  (forall (x : R -> tensor [m; n]) t, x t = X -> moves x t tX -> is_derive (fun u => ℓ (x u)) t
    (∑ i < m, ∑ j < n, dX i j * tX i j)) /\
  is_derive (fun u => ℓ (along X u tX)) 0 ⟨dX, tX⟩.
Proof. intro H. split; [intros x t Hx Ht; now apply H|now apply gradient_along]. Qed.

(** What stands beside the tangent is the gradient: the inner product with the array that is 1 at (i, j) alone picks out
    an entry, so two arrays that give the same inner products are the same. *)
Theorem eq_read_off m n (G dX : tensor [m; n]) (ℓ : tensor [m; n] -> R) (X : tensor [m; n]) :
  (forall i j, (i < m)%nat -> (j < n)%nat -> ⟨G, unit i j⟩ = G i j) /\
  (gradient ℓ X dX -> (forall tX, is_derive (fun u => ℓ (along X u tX)) 0 ⟨G, tX⟩) ->
    forall i j, (i < m)%nat -> (j < n)%nat -> dX i j = G i j).
Proof.
  split; [intros; now apply dot_unit|]. intros H HG i j Hi Hj.
  rewrite <- (dot_unit dX i j Hi Hj), <- (dot_unit G i j Hi Hj).
  pose proof (is_derive_unique _ _ _ (gradient_along ℓ X dX (unit i j) H)) as H1.
  pose proof (is_derive_unique _ _ _ (HG (unit i j))) as H2. congruence.
Qed.

(** The four moves of the inner product: a left factor crosses transposed and stays left, a right one stays right, a
    factor of an elementwise product crosses as it is, and both sides may be transposed. *)
Theorem eq_frobenius_moves m n p :
  (forall (A : tensor [m; p]) (B : tensor [m; n]) (C : tensor [n; p]), ⟨A, B × C⟩ = ⟨B^T × A, C⟩) /\
  (forall (A : tensor [m; p]) (B : tensor [m; n]) (C : tensor [n; p]), ⟨A, B × C⟩ = ⟨A × C^T, B⟩) /\
    (forall A B C : tensor [m; n], ⟨A, B ∘ C⟩ = ⟨A ∘ B, C⟩) /\
  (forall (A : tensor [n; m]) (B : tensor [m; n]), ⟨A, B^T⟩ = ⟨A^T, B⟩).
Proof.
  split; [intros; apply dot_matmul_l|split;
    [intros; apply dot_matmul_r|split; [intros; apply dot_hadamard|intros; apply dot_transpose]]].
Qed.

(** An inner product with a product, written out: collect what each entry of C is multiplied by. *)
Theorem step_cross m n p (A : tensor [m; p]) (B : tensor [m; n]) (C : tensor [n; p]) :
  ⟨A, B × C⟩ = ∑ k < n, ∑ j < p, (∑ i < m, B i k * A i j) * C k j.
Proof. exact (dot_matmul_l A B C). Qed.

(** The inner product of two matrices is the trace of Aᵀ B. *)
Theorem eq_frobenius_trace m n (A B : tensor [m; n]) : ⟨A, B⟩ = ∑ j < n, (A^T × B) j j.
Proof. simpl. apply sum_swap. Qed.

(** [jvp F X J]: at X, F takes a tangent tX to J tX. [adjoint J V]: V is J, moved over to the other side of the inner
    product. *)
Definition jvp {s r : list nat} (F : tensor s -> tensor r) (X : tensor s) (J : tensor s -> tensor r) : Prop :=
  forall x t tX, x t = X -> moves x t tX -> moves (fun u => F (x u)) t (J tX).
Definition adjoint {s r : list nat} (J : tensor s -> tensor r) (V : tensor r -> tensor s) : Prop :=
  forall dY tX, ⟨dY, J tX⟩ = ⟨V dY, tX⟩.

(** The change of the loss, seen at the output, is that seen at the input. So a vjp is the adjoint of the jvp, and an
    adjoint of the jvp gives the gradient for every loss. *)
Theorem eq_dot_product_test (s r : list nat) (F : tensor s -> tensor r) (X : tensor s) (J : tensor s -> tensor r) :
  jvp F X J ->
  (forall dY dX tX, gradient (fun X => ⟨dY, F X⟩) X dX -> ⟨dY, J tX⟩ = ⟨dX, tX⟩) /\
  (forall V ℓ dY, adjoint J V -> gradient ℓ (F X) dY -> gradient (fun X => ℓ (F X)) X (V dY)).
Proof.
  intro HJ. split.
  - intros dY dX tX H. pose proof (is_derive_unique _ _ _ (gradient_along _ X dX tX H)) as H1. rewrite <- H1. symmetry.
    apply is_derive_unique.
    apply (gradient_dot dY (F X) (fun u => F (along X u tX)) 0 (J tX)); [now rewrite along_0|].
    apply HJ; [apply along_0|apply moves_along].
  - intros V ℓ dY HV H. exact (backward F X J ℓ dY (V dY) HJ (HV dY) H).
Qed.

(** Two adjoints, one after the other: the last step is taken off first. *)
Theorem step_chain (s r q : list nat) (J_f : tensor s -> tensor r) (J_g : tensor r -> tensor q)
    (V_f : tensor r -> tensor s)
    (V_g : tensor q -> tensor r) (dZ : tensor q) (tX : tensor s) :
  adjoint J_f V_f -> adjoint J_g V_g -> ⟨dZ, J_g (J_f tX)⟩ = ⟨V_g dZ, J_f tX⟩ /\ ⟨V_g dZ, J_f tX⟩ = ⟨V_f (V_g dZ), tX⟩.
Proof. intros Af Ag. split; [apply Ag|apply Af]. Qed.

(** The chain rule is an order: tangents go through f, then g; gradients go back through g, then f. *)
Theorem eq_chain (s r q : list nat) (f : tensor s -> tensor r) (g : tensor r -> tensor q) (X : tensor s)
    (J_f : tensor s -> tensor r) (J_g : tensor r -> tensor q) (V_f : tensor r -> tensor s)
    (V_g : tensor q -> tensor r) :
  jvp f X J_f -> jvp g (f X) J_g -> adjoint J_f V_f -> adjoint J_g V_g ->
  jvp (fun X => g (f X)) X (fun tX => J_g (J_f tX)) /\
  forall ℓ dZ, gradient ℓ (g (f X)) dZ -> gradient (fun X => ℓ (g (f X))) X (V_f (V_g dZ)).
Proof.
  intros Hf Hg Af Ag. split.
  - intros x t tX Hx Ht. apply (Hg (fun u => f (x u))); [now rewrite Hx|now apply Hf].
  - intros ℓ dZ H. apply (backward f X J_f (fun Y => ℓ (g Y)) (V_g dZ)); [exact Hf|exact (Af (V_g dZ))|].
    exact (backward g (f X) J_g ℓ dZ (V_g dZ) Hg (Ag dZ) H).
Qed.

(** ** Entry by entry *)

(** A function of each entry alone: its derivative, times the gradient that arrives. *)
Theorem eq_elementwise m n (φ φ' : R -> R) (X : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dY : tensor [m; n]) :
  (forall i j, (i < m)%nat -> (j < n)%nat -> is_derive φ (X i j) (φ' (X i j))) ->
  gradient (s := [m; n]) ℓ (fun i j => φ (X i j)) dY ->
  gradient (s := [m; n]) (fun X => ℓ (fun i j => φ (X i j))) X (fun i j => φ' (X i j) * dY i j).
Proof.
  intro Hφ. apply (backward (fun X : tensor [m; n] => (fun i j => φ (X i j)) : tensor [m; n]) X
    (fun tX => (fun i j => φ' (X i j) * tX i j) : tensor [m; n]) ℓ dY).
  - intros x t tX Hx Ht i Hi j Hj. apply (derive_after φ (fun u => x u i j)); [rewrite Hx; now apply Hφ|now apply Ht].
  - intro tX. simpl. apply sum_ext; intros. apply sum_ext; intros. ring.
Qed.

(** A sum of two arrays: both get the gradient that arrives. *)
Theorem eq_elementwise__sum m n (A B : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dY : tensor [m; n]) :
  gradient ℓ (A ⊕ B) dY -> gradient (fun A => ℓ (A ⊕ B)) A dY /\ gradient (fun B => ℓ (A ⊕ B)) B dY.
Proof.
  intro H. split; intros x t tx Hx Ht.
  - eapply derive_eq; [apply (H (fun u => x u ⊕ B)); [now rewrite Hx|]|].
    + apply (add_moves x (fun _ => B) t tx zero Ht (moves_const _ _)).
    + rewrite dot_add_r, dot_zero. ring.
  - eapply derive_eq; [apply (H (fun u => A ⊕ x u)); [now rewrite Hx|]|].
    + apply (add_moves (fun _ => A) x t zero tx (moves_const _ _) Ht).
    + rewrite dot_add_r, dot_zero. ring.
Qed.

(** An array times a number: the array gets that number times the gradient that arrives. *)
Theorem eq_elementwise__scale m n scale (X : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dY : tensor [m; n]) :
  gradient ℓ (scale • X) dY -> gradient (fun X => ℓ (scale • X)) X (scale • dY).
Proof. intro H. exact (proj1 (scaled_backward scale X ℓ dY H)). Qed.

(** An elementwise product of two variables: each gets the gradient times the other. *)
Theorem eq_hadamard_vjp m n (A B : tensor [m; n]) (ℓ : tensor [m; n] -> R) (dY : tensor [m; n]) :
  gradient ℓ (A ∘ B) dY -> gradient (fun A => ℓ (A ∘ B)) A (dY ∘ B) /\ gradient (fun B => ℓ (A ∘ B)) B (dY ∘ A).
Proof.
  intro H. split; intros x t tx Hx Ht.
  - eapply derive_eq; [apply (H (fun u => x u ∘ B)); [now rewrite Hx|]|].
    + apply (hadamard_moves x (fun _ => B) t tx zero Ht (moves_const _ _)).
    + rewrite dot_add_r, !dot_hadamard, dot_zero. unfold hadamard. simpl. rewrite Rplus_0_r.
      apply sum_ext; intros. apply sum_ext; intros. ring.
  - eapply derive_eq; [apply (H (fun u => A ∘ x u)); [now rewrite Hx|]|].
    + apply (hadamard_moves (fun _ => A) x t zero tx (moves_const _ _) Ht).
    + rewrite dot_add_r, (dot_hadamard dY A), (dot_comm dY (zero ∘ x t)). unfold hadamard, zero. simpl.
      rewrite (sum_0 m); [ring|]. intros. apply sum_0. intros. ring.
Qed.

(** ** Broadcast and sum *)

(** A row that is repeated over all rows, a column over all columns, a number everywhere: each gets the sum over its
    uses. *)
Theorem eq_broadcast_vjp m n (ℓ : tensor [m; n] -> R) (dY : tensor [m; n]) :
    (forall x : tensor [n], gradient (s := [m; n]) ℓ (fun i j => x j) dY ->
    gradient (s := [n]) (fun x => ℓ (fun i j => x j)) x (fun j => ∑ i < m, dY i j)) /\
    (forall x : tensor [m], gradient (s := [m; n]) ℓ (fun i j => x i) dY ->
    gradient (s := [m]) (fun x => ℓ (fun i j => x i)) x (fun i => ∑ j < n, dY i j)) /\
    (forall x : R, gradient (s := [m; n]) ℓ (fun i j => x) dY ->
    gradient (s := []) (fun x => ℓ (fun i j => x)) x (∑ i < m, ∑ j < n, dY i j)).
Proof.
  split; [|split]; intros b H.
  - apply (backward (r := [m; n]) (fun b : tensor [n] => (fun i j => b j) : tensor [m; n]) b
      (fun tb => (fun i j => tb j) : tensor [m; n]) ℓ dY); [|intro; apply dot_rows|exact H].
    intros x t tb _ Ht i Hi j Hj. now apply Ht.
  - apply (backward (r := [m; n]) (fun b : tensor [m] => (fun i j => b i) : tensor [m; n]) b
      (fun tb => (fun i j => tb i) : tensor [m; n]) ℓ dY); [| |exact H].
    + intros x t tb _ Ht i Hi j Hj. now apply Ht.
    + intro tb. simpl. apply sum_ext; intros. now rewrite sum_r.
  - apply (backward (s := []) (r := [m; n]) (fun b => (fun i j => b) : tensor [m; n]) b
      (fun tb => (fun i j => tb) : tensor [m; n]) ℓ dY); [| |exact H].
    + intros x t tb _ Ht i Hi j Hj. exact Ht.
    + intro tb. simpl. rewrite sum_r. apply sum_ext; intros. now rewrite sum_r.
Qed.

(** The sum of n arrays of one shape, entry by entry. *)
Fixpoint sum_over {s : list nat} (n : nat) : (nat -> tensor s) -> tensor s :=
  match s with
  | [] => fun F => sum n F
  | _ :: _ => fun F => fun i => sum_over n (fun b => F b i)
  end.

Lemma dot_sum_over {s : list nat} n (F : nat -> tensor s) (T : tensor s) : ∑ b < n, ⟨F b, T⟩ = ⟨sum_over n F, T⟩.
Proof.
  induction s as [|m s IH]; simpl; [symmetry; apply sum_r|].
  rewrite sum_swap. apply sum_ext; intros i _. apply (IH (fun b => F b i)).
Qed.

(** An array of any shape that is used n times along a new axis, such as a bias in a batch: it gets the sum over that
    axis. *)
Theorem eq_broadcast_vjp__batch n (s : list nat) (x : tensor s) (ℓ : tensor (n :: s) -> R) (dY : tensor (n :: s)) :
  gradient ℓ (fun b => x) dY -> gradient (fun x => ℓ (fun b => x)) x (sum_over n (fun b => dY b)).
Proof.
  apply (backward (r := n :: s) (fun x => (fun b => x) : tensor (n :: s)) x (fun tx => (fun b => tx) : tensor (n :: s))
    ℓ dY).
  - intros y t ty _ Ht b Hb. exact Ht.
  - intro tx. exact (dot_sum_over n dY tx).
Qed.

(** A sum over a row hands its gradient to every entry of the row, a mean the n-th part of it. *)
Theorem eq_sum_mean_vjp m n (X : tensor [m; n]) (ℓ : tensor [m] -> R) (dy : tensor [m]) :
  (gradient ℓ (fun i => ∑ j < n, X i j) dy ->
    gradient (s := [m; n]) (fun X => ℓ (fun i => ∑ j < n, X i j)) X (fun i j => dy i)) /\
  (gradient ℓ (fun i => 1 / INR n * ∑ j < n, X i j) dy ->
    gradient (s := [m; n]) (fun X => ℓ (fun i => 1 / INR n * ∑ j < n, X i j)) X (fun i j => 1 / INR n * dy i)).
Proof.
  assert (Hs : forall (x : R -> tensor [m; n]) t tX, moves x t tX ->
      forall i, (i < m)%nat -> is_derive (fun u => ∑ j < n, x u i j) t (∑ j < n, tX i j)).
  { intros x t tX Ht i Hi. apply (sum_derive n (fun j u => x u i j)). intros j Hj. now apply Ht. }
  split.
  - apply (backward (r := [m]) (fun X : tensor [m; n] => (fun i => ∑ j < n, X i j)) X
      (fun tX => (fun i => ∑ j < n, tX i j)) ℓ dy).
    + intros x t tX _ Ht. exact (Hs x t tX Ht).
    + intro tX. simpl. apply sum_ext; intros. apply sum_l.
  - apply (backward (r := [m]) (fun X : tensor [m; n] => (fun i => 1 / INR n * ∑ j < n, X i j)) X
      (fun tX => (fun i => 1 / INR n * ∑ j < n, tX i j)) ℓ dy).
    + intros x t tX _ Ht i Hi. apply (derive_scale (1 / INR n) (fun u => ∑ j < n, x u i j)). exact (Hs x t tX Ht i Hi).
    + intro tX. simpl. apply sum_ext; intros i _. rewrite !sum_l. apply sum_ext; intros. ring.
Qed.

(** ** Transpose and reshape *)

(** A transpose sends back the transposed gradient. *)
Theorem eq_transpose_reshape_vjp m n (X : tensor [m; n]) (ℓ : tensor [n; m] -> R) (dY : tensor [n; m]) :
  gradient ℓ (X^T) dY -> gradient (fun X => ℓ (X^T)) X (dY^T).
Proof. apply gradient_transpose. Qed.

(** The entries of X in the same order, in rows of q in place of n. *)
Definition reshape {m n p q} (X : tensor [m; n]) : tensor [p; q] :=
  fun i j => X ((i * q + j) / n)%nat ((i * q + j) mod n)%nat.

Lemma dot_reshape {m n p q} (A : tensor [p; q]) (X : tensor [m; n]) : (m * n = p * q)%nat ->
  ⟨A, reshape X⟩ = ⟨reshape A, X⟩.
Proof.
  intro E. unfold reshape. simpl.
  transitivity (∑ k < p * q, A (k / q)%nat (k mod q)%nat * X (k / n)%nat (k mod n)%nat).
  - rewrite sum_mul. apply sum_ext; intros i _. apply sum_ext; intros j Hj.
    rewrite (Nat.div_add_l i q j), (Nat.div_small j q), Nat.add_0_r by lia. f_equal. f_equal.
    rewrite Nat.add_comm, Nat.mod_add by lia. symmetry. now apply Nat.mod_small.
  - rewrite <- E, sum_mul. apply sum_ext; intros i _. apply sum_ext; intros j Hj.
    rewrite (Nat.div_add_l i n j), (Nat.div_small j n), Nat.add_0_r by lia. f_equal. f_equal.
    rewrite Nat.add_comm, Nat.mod_add by lia. now apply Nat.mod_small.
Qed.

(** A reshape sends back the gradient in the shape of the input. *)
Theorem eq_transpose_reshape_vjp__reshape m n p q (X : tensor [m; n]) (ℓ : tensor [p; q] -> R) (dY : tensor [p; q]) :
  (m * n = p * q)%nat ->
  gradient ℓ (reshape X) dY -> gradient (fun X : tensor [m; n] => ℓ (reshape X)) X (reshape dY).
Proof.
  intro E. apply (backward reshape X reshape ℓ dY).
  - intros x t tX _ Ht i Hi j Hj. assert (Hk : (i * q + j < m * n)%nat) by nia.
    assert (Hn : n <> 0%nat) by (intros ->; lia).
    apply Ht; [apply Nat.div_lt_upper_bound; lia|now apply Nat.mod_upper_bound].
  - intro tX. now apply dot_reshape.
Qed.

(** ** Used twice *)

(** What is used in two places gets two gradients, and they add. *)
Theorem eq_fan_out_vjp m n (ℓ : tensor [m; n] -> tensor [m; n] -> R) (X dX1 dX2 : tensor [m; n]) :
  gradient2 ℓ X X dX1 dX2 -> gradient (fun X => ℓ X X) X (dX1 ⊕ dX2).
Proof. intros H x t tX Hx Ht. rewrite dot_add_l. now apply (H x x). Qed.

(** Both places move by the same tangent. *)
Theorem step_fan_out m n (dX1 dX2 tX : tensor [m; n]) : ⟨dX1, tX⟩ + ⟨dX2, tX⟩ = ⟨dX1 ⊕ dX2, tX⟩.
Proof. now rewrite dot_add_l. Qed.

(** All pairs of rows of one matrix, S = X Xᵀ. *)
Theorem eq_gram_vjp m n (X : tensor [m; n]) (ℓ : tensor [m; m] -> R) (dS : tensor [m; m]) :
  gradient ℓ (X × X^T) dS -> gradient (fun X => ℓ (X × X^T)) X ((dS ⊕ dS^T) × X).
Proof.
  intros H x t tX Hx Ht. eapply derive_eq; [apply (H (fun u => x u × (x u)^T)); [now rewrite Hx|]|].
  - exact (matmul_moves x (fun u => (x u)^T) t tX (tX^T) Ht (transpose_moves x t tX Ht)).
  - cbv beta. rewrite Hx, dot_add_r, (dot_matmul_r dS tX), (dot_matmul_l dS X), dot_transpose.
    rewrite <- dot_add_l. apply dot_ext; [|apply equal_refl]. intros i _ j _. unfold add, matmul, transpose. simpl.
    rewrite <- sum_plus. apply sum_ext; intros. ring.
Qed.

(** ** Exercises *)

(** The sum of a product, row by row. *)
Theorem eq_row_dot_vjp m n (A B : tensor [m; n]) (ℓ : tensor [m] -> R) (dD : tensor [m]) :
  gradient ℓ (fun i => ∑ j < n, A i j * B i j) dD ->
  gradient (s := [m; n]) (fun A => ℓ (fun i => ∑ j < n, A i j * B i j)) A (fun i j => dD i * B i j) /\
  gradient (s := [m; n]) (fun B => ℓ (fun i => ∑ j < n, A i j * B i j)) B (fun i j => dD i * A i j).
Proof.
  intro H. split.
  - apply (backward (r := [m]) (fun A : tensor [m; n] => (fun i => ∑ j < n, A i j * B i j)) A
      (fun tA => (fun i => ∑ j < n, tA i j * B i j)) ℓ dD); [| |exact H].
    + intros x t tA _ Ht i Hi. apply (sum_derive n (fun j u => x u i j * B i j)). intros j Hj.
      eapply derive_eq; [apply derive_mult; [now apply Ht|apply derive_const]|cbv beta; ring].
    + intro tA. simpl. apply sum_ext; intros i _. rewrite sum_l. apply sum_ext; intros. ring.
  - apply (backward (r := [m]) (fun B : tensor [m; n] => (fun i => ∑ j < n, A i j * B i j)) B
      (fun tB => (fun i => ∑ j < n, A i j * tB i j)) ℓ dD); [| |exact H].
    + intros x t tB _ Ht i Hi. apply (sum_derive n (fun j u => A i j * x u i j)). intros j Hj.
      apply (derive_scale (A i j) (fun u => x u i j)). now apply Ht.
    + intro tB. simpl. apply sum_ext; intros i _. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

(** Subtracting from each of n rows the mean of all: the vjp is the same map, and the columns of dX sum to 0, so a bias
    that was added to every row gets nothing. *)
Theorem eq_center_vjp n d (X : tensor [n; d]) (ℓ : tensor [n; d] -> R) (dY : tensor [n; d]) :
  let center := fun X : tensor [n; d] => (fun i j => X i j - 1 / INR n * ∑ k < n, X k j) : tensor [n; d] in
  gradient ℓ (center X) dY ->
  gradient (fun X => ℓ (center X)) X (fun i j => dY i j - 1 / INR n * ∑ k < n, dY k j) /\
  forall j, ∑ i < n, (dY i j - 1 / INR n * ∑ k < n, dY k j) = 0.
Proof.
  intros center H. split.
  - apply (backward center X center ℓ dY); [| |exact H].
    + intros x t tX _ Ht i Hi j Hj. apply (derive_minus (fun u => x u i j) (fun u => 1 / INR n * ∑ k < n, x u k j));
        [now apply Ht|].
      apply (derive_scale (1 / INR n) (fun u => ∑ k < n, x u k j)). apply (sum_derive n (fun k u => x u k j)).
      intros k Hk. now apply Ht.
    + intro tX. simpl. unfold center. rewrite sum_swap, (sum_swap n d (fun i j => (dY i j - _) * tX i j)).
      apply sum_ext; intros j _. set (a := ∑ k < n, tX k j). set (b := ∑ k < n, dY k j).
      transitivity (∑ i < n, (dY i j * tX i j - 1 / INR n * a * dY i j)); [apply sum_ext; intros; ring|].
      transitivity (∑ i < n, (dY i j * tX i j - 1 / INR n * b * tX i j)); [|apply sum_ext; intros; ring].
      rewrite !sum_minus, <- !sum_l. fold a b. ring.
  - intro j. rewrite sum_minus, sum_const. destruct n as [|n]; [simpl; ring|].
    field. apply not_0_INR. lia.
Qed.
