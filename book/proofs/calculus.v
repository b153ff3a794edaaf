(** * Sums, arrays, gradients

    What the other files stand on: a finite sum, an array of any shape, and what it means that one array is the
    gradient of a loss with respect to another. Rows and columns are counted from 0; a sum over no index is 0. *)

From Coq Require Export Reals Lra Lia List Bool Arith.
From Coq Require Import FunctionalExtensionality Morphisms.
From Coquelicot Require Export Coquelicot.
Export ListNotations.
Open Scope R_scope.

(** ** Sums *)

Fixpoint sum (n : nat) (f : nat -> R) : R :=
  match n with
  | O => 0
  | S m => sum m f + f m
  end.

Notation "'∑' i < n , e" := (sum n (fun i => e)) (at level 41, i name, n at level 49, e at level 41, right associativity).

Lemma sum_ext n f g : (forall i, (i < n)%nat -> f i = g i) -> sum n f = sum n g.
Proof.
  intro H. induction n as [|n IH]; simpl; [reflexivity|].
  rewrite IH, H by auto. reflexivity.
Qed.

#[export] Instance sum_proper n : Proper (pointwise_relation nat eq ==> eq) (sum n).
Proof. intros f g H. apply sum_ext. intros i _. apply H. Qed.

Lemma sum_0 n f : (forall i, (i < n)%nat -> f i = 0) -> sum n f = 0.
Proof.
  intro H. induction n as [|n IH]; simpl; [reflexivity|].
  rewrite IH, H by auto. ring.
Qed.

Lemma sum_plus n f g : sum n (fun i => f i + g i) = sum n f + sum n g.
Proof. induction n as [|n IH]; simpl; [|rewrite IH]; ring. Qed.

Lemma sum_minus n f g : sum n (fun i => f i - g i) = sum n f - sum n g.
Proof. induction n as [|n IH]; simpl; [|rewrite IH]; ring. Qed.

Lemma sum_opp n f : sum n (fun i => - f i) = - sum n f.
Proof. induction n as [|n IH]; simpl; [|rewrite IH]; ring. Qed.

Lemma sum_l c n f : c * sum n f = sum n (fun i => c * f i).
Proof. induction n as [|n IH]; simpl; [|rewrite <- IH]; ring. Qed.

Lemma sum_r c n f : sum n f * c = sum n (fun i => f i * c).
Proof. induction n as [|n IH]; simpl; [|rewrite <- IH]; ring. Qed.

Lemma sum_div c n f : sum n f / c = sum n (fun i => f i / c).
Proof. apply sum_r. Qed.

Lemma sum_const c n : sum n (fun _ => c) = INR n * c.
Proof. induction n as [|n IH]; [simpl; ring|]. rewrite S_INR. cbn [sum]. rewrite IH. ring. Qed.

(** Two sums may change places. *)
Lemma sum_swap m n f : ∑ i < m, ∑ j < n, f i j = ∑ j < n, ∑ i < m, f i j.
Proof.
  induction m as [|m IH]; simpl.
  - symmetry. now apply sum_0.
  - rewrite IH, <- sum_plus. reflexivity.
Qed.

(** A sum may be cut anywhere. *)
Lemma sum_add m n f : sum (m + n) f = sum m f + ∑ i < n, f (m + i)%nat.
Proof.
  induction n as [|n IH]; simpl.
  - rewrite Nat.add_0_r. ring.
  - rewrite Nat.add_succ_r. simpl. rewrite IH. ring.
Qed.

(** A sum over m·n indices is one over m blocks of n. *)
Lemma sum_mul m n f : sum (m * n) f = ∑ i < m, ∑ j < n, f (i * n + j)%nat.
Proof.
  induction m as [|m IH]; simpl; [reflexivity|].
  rewrite Nat.add_comm, sum_add, IH. reflexivity.
Qed.

(** A sum in which one index alone counts. *)
Lemma sum_one n i f : (i < n)%nat -> (forall k, (k < n)%nat -> k <> i -> f k = 0) -> sum n f = f i.
Proof.
  intros Hi H. induction n as [|n IH]; [lia|]. cbn [sum].
  destruct (Nat.eq_dec i n) as [->|Hne].
  - rewrite sum_0; [ring|]. intros k Hk. apply H; lia.
  - rewrite IH; [|lia|intros; apply H; lia]. rewrite (H n); [ring|lia|congruence].
Qed.

Definition δ (i j : nat) : R := if Nat.eqb i j then 1 else 0.

Lemma δ_same i : δ i i = 1.
Proof. unfold δ. now rewrite Nat.eqb_refl. Qed.

Lemma δ_other i j : i <> j -> δ i j = 0.
Proof. unfold δ. intro H. destruct (Nat.eqb_spec i j); [contradiction|reflexivity]. Qed.

Lemma δ_comm i j : δ i j = δ j i.
Proof. unfold δ. now rewrite Nat.eqb_sym. Qed.

Lemma sum_δ n i f : (i < n)%nat -> ∑ k < n, δ i k * f k = f i.
Proof.
  intro Hi. rewrite (sum_one n i); [rewrite δ_same; ring|exact Hi|].
  intros k _ Hk. rewrite δ_other by congruence. ring.
Qed.

(** A sum whose later terms are 0. *)
Lemma sum_first b n f : (b <= n)%nat -> (forall k, (b <= k)%nat -> (k < n)%nat -> f k = 0) -> sum n f = sum b f.
Proof.
  intros H H0. replace n with (b + (n - b))%nat by lia. rewrite sum_add.
  rewrite (sum_0 (n - b)); [ring|]. intros; apply H0; lia.
Qed.

Lemma sum_le n f g : (forall i, (i < n)%nat -> f i <= g i) -> sum n f <= sum n g.
Proof.
  intro H. induction n as [|n IH]; simpl; [lra|].
  apply Rplus_le_compat; [apply IH|apply H]; auto.
Qed.

Lemma sum_nonneg n f : (forall i, (i < n)%nat -> 0 <= f i) -> 0 <= sum n f.
Proof. intro H. rewrite <- (sum_0 n (fun _ => 0)); [now apply sum_le|reflexivity]. Qed.

Lemma sum_pos n f i : (i < n)%nat -> (forall k, (k < n)%nat -> 0 <= f k) -> 0 < f i -> 0 < sum n f.
Proof.
  intros Hi H Hf. induction n as [|n IH]; [lia|]. cbn [sum].
  destruct (Nat.eq_dec i n) as [->|Hne].
  - pose proof (sum_nonneg n f ltac:(intros; apply H; lia)). lra.
  - pose proof (IH ltac:(lia) ltac:(intros; apply H; lia)). pose proof (H n ltac:(lia)). lra.
Qed.

Lemma sum_derive n (f : nat -> R -> R) t (df : nat -> R) :
  (forall i, (i < n)%nat -> is_derive (f i) t (df i)) -> is_derive (fun u => ∑ i < n, f i u) t (sum n df).
Proof.
  intro H. induction n as [|n IH]; simpl.
  - apply is_derive_Reals, derivable_pt_lim_const.
  - apply (is_derive_plus (fun u => ∑ i < n, f i u) (f n)); [apply IH|apply H]; auto.
Qed.

(** ** Arrays: [tensor [n_q; d_k]] is a matrix, [tensor [n]] a vector, [tensor []] a number

    An entry is written [Q i a]. What stands outside of the shape never counts. *)

Fixpoint tensor (shape : list nat) : Type :=
  match shape with
  | [] => R
  | _ :: rest => nat -> tensor rest
  end.

(** One part of an array along its first axis, such as one head of many: [Q.[r]]. *)
Definition part {n s} (T : tensor (n :: s)) (r : nat) : tensor s := T r.
Notation "T .[ r ]" := (part T r) (at level 2, r at level 200, left associativity, format "T .[ r ]").

(** The inner product ⟨A, B⟩: the sum of the products of all entries. *)
Fixpoint dot {s : list nat} : tensor s -> tensor s -> R :=
  match s with
  | [] => fun a b => a * b
  | n :: _ => fun A B => ∑ i < n, dot (A i) (B i)
  end.

Notation "⟨ A , B ⟩" := (dot A B) (at level 0, A at level 99, B at level 99).

(** [moves X t tX]: at time t the curve X has the velocity tX, entry by entry. *)
Fixpoint moves {s : list nat} : (R -> tensor s) -> R -> tensor s -> Prop :=
  match s with
  | [] => fun x t tx => is_derive x t tx
  | n :: _ => fun X t tX => forall i, (i < n)%nat -> moves (fun u => X u i) t (tX i)
  end.

(** [equal A B]: all entries within the shape are the same. *)
Fixpoint equal {s : list nat} : tensor s -> tensor s -> Prop :=
  match s with
  | [] => fun a b => a = b
  | n :: _ => fun A B => forall i, (i < n)%nat -> equal (A i) (B i)
  end.

Fixpoint along {s : list nat} : tensor s -> R -> tensor s -> tensor s :=
  match s with
  | [] => fun x t tx => x + t * tx
  | _ :: _ => fun X t tX => fun i => along (X i) t (tX i)
  end.

(** [gradient ℓ X dX]: dX is the gradient of the loss ℓ at X. However X moves, ℓ changes at the rate ⟨dX, tX⟩. *)
Definition gradient {s : list nat} (ℓ : tensor s -> R) (X dX : tensor s) : Prop :=
  forall (x : R -> tensor s) (t : R) (tX : tensor s),
    x t = X -> moves x t tX -> is_derive (fun u => ℓ (x u)) t ⟨dX, tX⟩.

Lemma dot_comm {s} (A B : tensor s) : ⟨A, B⟩ = ⟨B, A⟩.
Proof.
  induction s as [|n s IH]; simpl; [apply Rmult_comm|].
  apply sum_ext. intros. apply IH.
Qed.

Lemma dot_ext {s} (A A' B B' : tensor s) : equal A A' -> equal B B' -> ⟨A, B⟩ = ⟨A', B'⟩.
Proof.
  induction s as [|n s IH]; simpl; intros HA HB; [now subst|].
  apply sum_ext. intros. apply IH; auto.
Qed.

Lemma equal_refl {s} (A : tensor s) : equal A A.
Proof. induction s; simpl; auto. Qed.

Lemma moves_ext {s} (x y : R -> tensor s) t tX tY :
  (forall u, equal (x u) (y u)) -> equal tX tY -> moves x t tX -> moves y t tY.
Proof.
  induction s as [|n s IH]; simpl; intros Hx Ht H.
  - subst tY. now apply (is_derive_ext x).
  - intros i Hi. apply (IH (fun u => x u i) _ (tX i)); auto.
Qed.

Lemma along_0 {s} (X tX : tensor s) : along X 0 tX = X.
Proof.
  induction s as [|n s IH]; simpl; [ring|]. apply functional_extensionality. intro i. apply IH.
Qed.

Fixpoint zero {s : list nat} : tensor s :=
  match s with
  | [] => 0
  | _ :: _ => fun _ => zero
  end.

Lemma moves_const {s} (X : tensor s) t : moves (fun _ => X) t zero.
Proof.
  induction s as [|n s IH]; simpl; [apply is_derive_Reals, derivable_pt_lim_const|].
  intros i _. apply IH.
Qed.

Lemma dot_zero {s} (A : tensor s) : ⟨A, zero⟩ = 0.
Proof. induction s as [|n s IH]; simpl; [ring|]. apply sum_0. intros. apply IH. Qed.

(** An inner product changes by both of its sides. *)
Lemma dot_derive {s} (a b : R -> tensor s) t tA tB :
  moves a t tA -> moves b t tB -> is_derive (fun u => ⟨a u, b u⟩) t (⟨tA, b t⟩ + ⟨a t, tB⟩).
Proof.
  induction s as [|n s IH]; simpl; intros HA HB.
  - apply (is_derive_mult a b t tA tB HA HB). intros. apply Rmult_comm.
  - rewrite <- sum_plus. apply (sum_derive n (fun i u => ⟨a u i, b u i⟩)). intros i Hi.
    apply (IH (fun u => a u i) (fun u => b u i)); auto.
Qed.

(** ** Rules for numbers that move *)

Lemma derive_eq (f : R -> R) (t a b : R) : is_derive f t a -> a = b -> is_derive f t b.
Proof. now intros H <-. Qed.

Lemma derive_const (c t : R) : is_derive (fun _ => c) t 0.
Proof. apply is_derive_Reals, derivable_pt_lim_const. Qed.

Lemma derive_plus (f g : R -> R) (t a b : R) : is_derive f t a -> is_derive g t b -> is_derive (fun u => f u + g u) t (a + b).
Proof. intros Hf Hg. exact (is_derive_plus f g t a b Hf Hg). Qed.

Lemma derive_minus (f g : R -> R) (t a b : R) : is_derive f t a -> is_derive g t b -> is_derive (fun u => f u - g u) t (a - b).
Proof. intros Hf Hg. exact (is_derive_minus f g t a b Hf Hg). Qed.

Lemma derive_opp (f : R -> R) (t a : R) : is_derive f t a -> is_derive (fun u => - f u) t (- a).
Proof. intros Hf. exact (is_derive_opp f t a Hf). Qed.

Lemma derive_mult (f g : R -> R) (t a b : R) :
  is_derive f t a -> is_derive g t b -> is_derive (fun u => f u * g u) t (a * g t + f t * b).
Proof. intros Hf Hg. apply (is_derive_mult f g t a b Hf Hg). intros. apply Rmult_comm. Qed.

Lemma derive_scale (c : R) (f : R -> R) (t a : R) : is_derive f t a -> is_derive (fun u => c * f u) t (c * a).
Proof. intros Hf. eapply derive_eq; [apply derive_mult; [apply derive_const|exact Hf]|]. cbv beta. ring. Qed.

Lemma derive_div (f g : R -> R) (t a b : R) :
  is_derive f t a -> is_derive g t b -> g t <> 0 -> is_derive (fun u => f u / g u) t ((a * g t - f t * b) / (g t * g t)).
Proof.
  intros Hf Hg H. eapply derive_eq; [apply (is_derive_div f g t a b Hf Hg H)|].
  unfold minus, plus, opp, scal; simpl. unfold mult; simpl. field. exact H.
Qed.

(** A function of one number after a number that moves. *)
Lemma derive_after (φ f : R -> R) (t a b : R) : is_derive φ (f t) b -> is_derive f t a -> is_derive (fun u => φ (f u)) t (b * a).
Proof.
  intros Hφ Hf. eapply derive_eq; [apply (is_derive_comp φ f t b a Hφ Hf)|].
  unfold scal; simpl. unfold mult; simpl. ring.
Qed.

Lemma derive_exp (f : R -> R) (t a : R) : is_derive f t a -> is_derive (fun u => exp (f u)) t (exp (f t) * a).
Proof. apply (derive_after exp), is_derive_exp. Qed.

Lemma derive_ln (f : R -> R) (t a : R) : is_derive f t a -> 0 < f t -> is_derive (fun u => ln (f u)) t (a / f t).
Proof.
  intros Hf H. eapply derive_eq; [apply (derive_after ln f t a (/ f t)); [now apply is_derive_ln|exact Hf]|].
  unfold Rdiv. ring.
Qed.

Lemma derivative_unique (f : R -> R) (t a b : R) : is_derive f t a -> is_derive f t b -> a = b.
Proof. intros Ha Hb. apply is_derive_unique in Ha, Hb. congruence. Qed.

(** A straight line through X with direction tX is one of the curves. *)
Lemma moves_along {s} (X tX : tensor s) t : moves (fun u => along X u tX) t tX.
Proof.
  induction s as [|n s IH]; simpl; [|intros; apply IH].
  eapply derive_eq; [apply (derive_plus (fun _ => X) (fun u => u * tX)); [apply derive_const|]|].
  - apply (derive_mult (fun u => u) (fun _ => tX)); [apply is_derive_id|apply derive_const].
  - unfold one; simpl. ring.
Qed.

(** ** What a gradient is good for *)

(** Along a straight line: the directional derivative is the inner product with the gradient. *)
Lemma gradient_along {s} (ℓ : tensor s -> R) (X dX tX : tensor s) :
  gradient ℓ X dX -> is_derive (fun u => ℓ (along X u tX)) 0 ⟨dX, tX⟩.
Proof. intro H. apply (H (fun u => along X u tX)); [apply along_0|apply moves_along]. Qed.

(** Two gradients of one loss agree in every direction. *)
Lemma gradient_unique {s} (ℓ : tensor s -> R) (X A B tX : tensor s) :
  gradient ℓ X A -> gradient ℓ X B -> ⟨A, tX⟩ = ⟨B, tX⟩.
Proof.
  intros HA HB. apply (gradient_along _ _ _ tX) in HA, HB.
  apply is_derive_unique in HA, HB. congruence.
Qed.

Lemma gradient_ext {s} (ℓ : tensor s -> R) (X A B : tensor s) : equal A B -> gradient ℓ X A -> gradient ℓ X B.
Proof.
  intros E H x t tX Hx Ht. rewrite <- (dot_ext A B tX tX E (equal_refl _)). now apply H.
Qed.

(** What a loss does not read gets 0. *)
Lemma gradient_const {s} (c : R) (X : tensor s) : gradient (fun _ => c) X zero.
Proof. intros x t tX _ _. eapply derive_eq; [apply derive_const|]. now rewrite dot_comm, dot_zero. Qed.

(** The inner product with a constant array has that array as its gradient: so ⟨dY, F X⟩ is one of the losses. *)
Lemma gradient_dot {s} (dY Y : tensor s) : gradient (fun Y => ⟨dY, Y⟩) Y dY.
Proof.
  intros y t tY _ Ht. eapply derive_eq; [apply dot_derive; [apply moves_const|exact Ht]|].
  rewrite dot_comm, dot_zero. ring.
Qed.

(** How every backward is found, as in chapter 2: know how the output moves (the jvp), then move the inner product
    from the output to the input (the vjp is its adjoint). *)
Lemma backward {s r} (F : tensor s -> tensor r) (X : tensor s) (tF : tensor s -> tensor r) (ℓ : tensor r -> R) dY dX :
  (forall x t tX, x t = X -> moves x t tX -> moves (fun u => F (x u)) t (tF tX)) ->
  (forall tX, ⟨dY, tF tX⟩ = ⟨dX, tX⟩) ->
  gradient ℓ (F X) dY -> gradient (fun X => ℓ (F X)) X dX.
Proof.
  intros Hjvp Hadj Hℓ x t tX Hx Ht. rewrite <- Hadj.
  apply (Hℓ (fun u => F (x u))); [now rewrite Hx|now apply Hjvp].
Qed.

(** The same for a loss of two arrays, such as O and L. *)
Definition gradient2 {s r : list nat} (ℓ : tensor s -> tensor r -> R) (X : tensor s) (Y : tensor r) dX dY : Prop :=
  forall (x : R -> tensor s) (y : R -> tensor r) (t : R) (tX : tensor s) (tY : tensor r),
    x t = X -> y t = Y -> moves x t tX -> moves y t tY -> is_derive (fun u => ℓ (x u) (y u)) t (⟨dX, tX⟩ + ⟨dY, tY⟩).
