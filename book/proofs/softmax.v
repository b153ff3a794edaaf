(** * Softmax (chapter 3), with a mask (chapter 6)

    [M i j] says whether query i may see key j. A row in which no key is allowed is dead: its weights are 0.
    With [everything] allowed this is the softmax of chapter 3. *)

From attnbook Require Export products.

Definition mask := nat -> nat -> bool.
Definition everything : mask := fun _ _ => true.

(** [live M n i]: row i has an allowed key. *)
Definition live (M : mask) (n i : nat) : Prop := exists k, (k < n)%nat /\ M i k = true.

Definition E {m n} (M : mask) (S : tensor [m; n]) : tensor [m; n] := fun i j => if M i j then exp (S i j) else 0.
Definition Z {m n} (M : mask) (S : tensor [m; n]) : tensor [m] := fun i => ∑ k < n, E M S i k.
Definition softmax {m n} (M : mask) (S : tensor [m; n]) : tensor [m; n] := fun i j => E M S i j / Z M S i.
Definition logsumexp {m n} (M : mask) (S : tensor [m; n]) : tensor [m] := fun i => ln (Z M S i).

Lemma E_nonneg {m n} M (S : tensor [m; n]) i j : 0 <= E M S i j.
Proof. unfold E. destruct (M i j); [apply Rlt_le, exp_pos|lra]. Qed.

Lemma Z_pos {m n} M (S : tensor [m; n]) i j : (j < n)%nat -> M i j = true -> 0 < Z M S i.
Proof.
  intros Hj HM. apply (sum_pos n _ j Hj); [intros; apply E_nonneg|].
  unfold E. rewrite HM. apply exp_pos.
Qed.

Lemma Z_live {m n} M (S : tensor [m; n]) i : live M n i -> 0 < Z M S i.
Proof. intros [k [Hk HM]]. now apply (Z_pos M S i k). Qed.

(** A row is live, or all its keys are forbidden. *)
Lemma live_or_dead M n i : live M n i \/ forall k, (k < n)%nat -> M i k = false.
Proof.
  induction n as [|n [[k [Hk HM]]|H]].
  - right. intros. lia.
  - left. exists k. auto.
  - destruct (M i n) eqn:HM; [left; exists n; auto|].
    right. intros k Hk. destruct (Nat.eq_dec k n) as [->|]; [exact HM|apply H; lia].
Qed.

Lemma E_forbidden {m n} M (S : tensor [m; n]) i j : M i j = false -> E M S i j = 0.
Proof. unfold E. now intros ->. Qed.

Lemma softmax_forbidden {m n} M (S : tensor [m; n]) i j : M i j = false -> softmax M S i j = 0.
Proof. unfold softmax. intro H. rewrite E_forbidden by exact H. unfold Rdiv. ring. Qed.

(** The weights of a live row sum to 1. *)
Lemma softmax_sum {m n} M (S : tensor [m; n]) i : live M n i -> ∑ j < n, softmax M S i j = 1.
Proof.
  intro H. unfold softmax. rewrite <- sum_div. apply (Z_live M S) in H.
  change (Z M S i / Z M S i = 1). field. lra.
Qed.

Lemma E_derive {m n} M (s : R -> tensor [m; n]) t tS i j :
  moves s t tS -> (i < m)%nat -> (j < n)%nat -> is_derive (fun u => E M (s u) i j) t (E M (s t) i j * tS i j).
Proof.
  intros H Hi Hj. unfold E. destruct (M i j).
  - apply (derive_exp (fun u => s u i j)). now apply H.
  - eapply derive_eq; [apply derive_const|ring].
Qed.

Lemma Z_derive {m n} M (s : R -> tensor [m; n]) t tS i :
  moves s t tS -> (i < m)%nat -> is_derive (fun u => Z M (s u) i) t (∑ k < n, E M (s t) i k * tS i k).
Proof. intros H Hi. apply (sum_derive n (fun k u => E M (s u) i k)). intros. now apply E_derive. Qed.

Lemma softmax_average {m n} M (S X : tensor [m; n]) i :
  ∑ k < n, softmax M S i k * X i k = (∑ k < n, E M S i k * X i k) / Z M S i.
Proof. rewrite sum_div. apply sum_ext; intros. unfold softmax, Rdiv. ring. Qed.

(** How much better than the row's average, times the weight: the one formula of softmax, in both modes. *)
Definition centered {m n} (P X : tensor [m; n]) : tensor [m; n] := fun i j => P i j * (X i j - ∑ k < n, P i k * X i k).

Lemma centered_adjoint {m n} (P A B : tensor [m; n]) : ⟨A, centered P B⟩ = ⟨centered P A, B⟩.
Proof.
  simpl. apply sum_ext; intros i _. unfold centered.
  set (a := ∑ k < n, P i k * A i k). set (b := ∑ k < n, P i k * B i k).
  transitivity (∑ j < n, (A i j * P i j * B i j - b * (P i j * A i j))); [apply sum_ext; intros; ring|].
  transitivity (∑ j < n, (A i j * P i j * B i j - a * (P i j * B i j))); [|apply sum_ext; intros; ring].
  rewrite !sum_minus, <- !sum_l. fold a b. ring.
Qed.

Lemma softmax_moves {m n} M (s : R -> tensor [m; n]) t tS :
  moves s t tS -> moves (s := [m; n]) (fun u => softmax M (s u)) t (centered (softmax M (s t)) tS).
Proof.
  intros H i Hi j Hj. destruct (M i j) eqn:HM.
  - assert (HZ : 0 < Z M (s t) i) by now apply (Z_pos M (s t) i j).
    eapply derive_eq.
    + apply (derive_div (fun u => E M (s u) i j) (fun u => Z M (s u) i)); [exact (E_derive M s t tS i j H Hi Hj)|exact (Z_derive M s t tS i H Hi)|lra].
    + unfold centered. rewrite softmax_average. unfold softmax. field. lra.
  - apply (is_derive_ext (fun _ => 0)); [intro; symmetry; now apply softmax_forbidden|].
    eapply derive_eq; [apply derive_const|]. unfold centered. rewrite softmax_forbidden by exact HM. ring.
Qed.

Lemma logsumexp_moves {m n} M (s : R -> tensor [m; n]) t tS :
  moves s t tS -> moves (s := [m]) (fun u => logsumexp M (s u)) t (fun i => ∑ k < n, softmax M (s t) i k * tS i k).
Proof.
  intros H i Hi. rewrite softmax_average. destruct (live_or_dead M n i) as [HL|HD].
  - unfold logsumexp. apply (derive_ln (fun u => Z M (s u) i)); [now apply Z_derive|now apply Z_live].
  - assert (H0 : forall S : tensor [m; n], Z M S i = 0) by (intro S; apply sum_0; intros; apply E_forbidden; auto).
    apply (is_derive_ext (fun _ => ln 0)); [intro; unfold logsumexp; now rewrite H0|].
    eapply derive_eq; [apply derive_const|]. rewrite sum_0; [unfold Rdiv; ring|].
    intros. rewrite E_forbidden by auto. ring.
Qed.

(** ** The chapter's theorems *)

(** If dP is the gradient of any loss at the weights P = softmax(S), the gradient at the scores S is
    P (dP − the row's average of dP). For every mask; in a dead row it is 0. *)
Theorem eq_softmax_vjp n_q n_k (M : mask) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R) (dP : tensor [n_q; n_k]) :
  let P := softmax M S in
  gradient ℓ P dP ->
  gradient (fun S => ℓ (softmax M S)) S (fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k)).
Proof.
  intros P. apply (backward (softmax M) S (centered P)); [|apply centered_adjoint].
  intros x t tX Hx Ht. unfold P. rewrite <- Hx. now apply softmax_moves.
Qed.

(** When the scores move by tS, the weights move by P (tS − the row's average of tS). *)
Theorem eq_softmax_jvp n_q n_k (M : mask) (S : R -> tensor [n_q; n_k]) t (tS : tensor [n_q; n_k]) :
  let P := softmax M (S t) in
  moves S t tS ->
  moves (s := [n_q; n_k]) (fun u => softmax M (S u)) t (fun i j => P i j * (tS i j - ∑ k < n_k, P i k * tS i k)).
Proof. apply softmax_moves. Qed.

(** ** Only differences matter *)

Lemma E_shift {m n} M (S : tensor [m; n]) (c : tensor [m]) i j :
  E (m := m) (n := n) M (fun i j => S i j + c i) i j = exp (c i) * E M S i j.
Proof. unfold E. destruct (M i j); [rewrite exp_plus; ring|ring]. Qed.

Lemma Z_shift {m n} M (S : tensor [m; n]) (c : tensor [m]) i :
  Z (m := m) (n := n) M (fun i j => S i j + c i) i = exp (c i) * Z M S i.
Proof. unfold Z. rewrite sum_l. apply sum_ext; intros. apply E_shift. Qed.

(** A number added to a whole row of scores changes no weight: softmax sees only differences. *)
Theorem eq_softmax_shift n_q n_k (M : mask) (S : tensor [n_q; n_k]) (c : tensor [n_q]) :
  forall i j, softmax (m := n_q) (n := n_k) M (fun i j => S i j + c i) i j = softmax M S i j.
Proof.
  intros i j. unfold softmax. rewrite E_shift, Z_shift. unfold Rdiv. rewrite Rinv_mult.
  transitivity (exp (c i) * / exp (c i) * (E M S i j * / Z M S i)); [ring|].
  rewrite Rinv_r by (pose proof (exp_pos (c i)); lra). ring.
Qed.

(** The stable form: subtract from each row any number m_i, such as its largest score. *)
Theorem eq_softmax_stable n_q n_k (M : mask) (S : tensor [n_q; n_k]) (m : tensor [n_q]) :
  forall i j, softmax M S i j =
    (if M i j then exp (S i j - m i) else 0) / ∑ k < n_k, (if M i k then exp (S i k - m i) else 0).
Proof. intros i j. rewrite <- (eq_softmax_shift n_q n_k M S (fun i => - m i)). reflexivity. Qed.
