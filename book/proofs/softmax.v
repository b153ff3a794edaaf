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
    + apply (derive_div (fun u => E M (s u) i j) (fun u => Z M (s u) i));
        [exact (E_derive M s t tS i j H Hi Hj)|exact (Z_derive M s t tS i H Hi)|lra].
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
Theorem eq_softmax_vjp n_q n_k (M : mask) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dP : tensor [n_q; n_k]) :
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

(** ** The Jacobian, and other ways to the same line *)

Lemma softmax_dead {m n} M (S : tensor [m; n]) i j : ~ live M n i -> (j < n)%nat -> softmax M S i j = 0.
Proof.
  intros H Hj. apply softmax_forbidden. destruct (live_or_dead M n i) as [HL|HD]; [contradiction|now apply HD].
Qed.

(** The rows of what comes out of [centered] sum to 0, in dead rows too. *)
Lemma centered_rows {m n} M (S X : tensor [m; n]) i : ∑ j < n, centered (softmax M S) X i j = 0.
Proof.
  unfold centered. set (a := ∑ k < n, softmax M S i k * X i k).
  transitivity (∑ j < n, (softmax M S i j * X i j - a * softmax M S i j)); [apply sum_ext; intros; ring|].
  rewrite sum_minus, <- sum_l. fold a. destruct (live_or_dead M n i) as [HL|HD].
  - rewrite softmax_sum by exact HL. ring.
  - unfold a. rewrite !sum_0; [ring|..]; intros; rewrite softmax_forbidden by auto; ring.
Qed.

Lemma softmax_partial {m n} M (S : tensor [m; n]) i j k l : (i < m)%nat -> (j < n)%nat -> (l < n)%nat ->
  is_derive (fun u => softmax M (along (s := [m; n]) S u (unit k l)) i j) 0
    (δ k i * (softmax M S i j * (δ l j - softmax M S i l))).
Proof.
  intros Hi Hj Hl. eapply derive_eq.
  - exact (softmax_moves M (fun u => along (s := [m; n]) S u (unit k l)) 0 (unit k l) (moves_along S (unit k l) 0) i Hi
      j Hj).
  - cbv beta. rewrite along_0. unfold centered, unit.
    replace (∑ c < n, softmax M S i c * (δ k i * δ l c)) with (δ k i * softmax M S i l); [ring|].
    rewrite <- (sum_δ n l (softmax M S i)) by exact Hl. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

(** The quotient rule for one pair: this weight, that score of its row. *)
Theorem step_softmax_quotient n_q n_k (S : tensor [n_q; n_k]) i j l :
  let Z := ∑ k < n_k, exp (S i k) in
  let P := softmax everything S in
  (i < n_q)%nat -> (j < n_k)%nat -> (l < n_k)%nat ->
  is_derive (fun u => softmax everything (along (s := [n_q; n_k]) S u (unit i l)) i j) 0
    ((δ j l * exp (S i j) * Z - exp (S i j) * exp (S i l)) / (Z * Z)) /\
  (δ j l * exp (S i j) * Z - exp (S i j) * exp (S i l)) / (Z * Z) = P i j * (δ j l - P i l).
Proof.
  intros z P Hi Hj Hl. assert (Hz : 0 < z) by exact (Z_pos everything S i j Hj eq_refl).
  assert (H : (δ j l * exp (S i j) * z - exp (S i j) * exp (S i l)) / (z * z) = P i j * (δ j l - P i l)).
  { unfold P, softmax. change (Z everything S i) with z. unfold E, everything. field. lra. }
  split; [|exact H]. rewrite H. eapply derive_eq; [now apply softmax_partial|].
  rewrite δ_same, (δ_comm l j). unfold P. ring.
Qed.

(** The Jacobian: how the weight P_ij moves with the score S_il of its row. A score of another row does not move it. *)
Theorem eq_softmax_jacobian n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j l :
  let P := softmax M S in
  (i < n_q)%nat -> (j < n_k)%nat -> (l < n_k)%nat ->
  is_derive (fun u => softmax M (along (s := [n_q; n_k]) S u (unit i l)) i j) 0 (P i j * (δ j l - P i l)) /\
  forall k, k <> i -> is_derive (fun u => softmax M (along (s := [n_q; n_k]) S u (unit k l)) i j) 0 0.
Proof.
  intros P Hi Hj Hl. split; [|intros k Hk]; (eapply derive_eq; [now apply softmax_partial|]).
  - rewrite δ_same, (δ_comm l j). unfold P. ring.
  - rewrite δ_other by exact Hk. ring.
Qed.

(** The chain rule, row by row and for every mask. Let J be the partial derivatives of the weights of a row by its
    scores. For any loss with the gradient dP at the weights, the gradient of the scores is the sum of dP J. With the
    Jacobian put in for J, the matrix goes and one sum is left. *)
Theorem step_softmax_chain n_q n_k (M : mask) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dP : tensor [n_q; n_k]) (J : nat -> nat -> nat -> R) :
  let P := softmax M S in
  let dS i l := ∑ j < n_k, dP i j * J i j l in
  (forall i j l, (i < n_q)%nat -> (j < n_k)%nat -> (l < n_k)%nat ->
    is_derive (fun u => softmax M (along (s := [n_q; n_k]) S u (unit i l)) i j) 0 (J i j l)) ->
  gradient ℓ P dP ->
  gradient (fun S => ℓ (softmax M S)) S dS /\
  forall i l, (i < n_q)%nat -> (l < n_k)%nat ->
    dS i l = ∑ j < n_k, dP i j * (P i j * (δ j l - P i l)) /\
    ∑ j < n_k, dP i j * (P i j * (δ j l - P i l)) = P i l * dP i l - P i l * ∑ j < n_k, P i j * dP i j.
Proof.
  intros P dS HJ H.
  assert (H1 : forall i l, (i < n_q)%nat -> (l < n_k)%nat -> dS i l = ∑ j < n_k, dP i j * (P i j * (δ j l - P i l))).
  { intros i l Hi Hl. apply sum_ext; intros j Hj. f_equal.
    exact (derivative_unique _ _ _ _ (HJ i j l Hi Hj Hl) (proj1 (eq_softmax_jacobian n_q n_k M S i j l Hi Hj Hl))). }
  assert (H2 : forall i l, (l < n_k)%nat ->
    ∑ j < n_k, dP i j * (P i j * (δ j l - P i l)) = P i l * dP i l - P i l * ∑ j < n_k, P i j * dP i j).
  { intros i l Hl. rewrite sum_l, <- (sum_δ n_k l (fun j => P i j * dP i j) Hl), <- sum_minus.
    apply sum_ext; intros. rewrite (δ_comm l). ring. }
  split; [|auto]. refine (gradient_ext _ _ _ _ _ (eq_softmax_vjp n_q n_k M S ℓ dP H)).
  intros i Hi l Hl. simpl. rewrite H1, H2 by assumption. fold P. ring.
Qed.

(** With differentials: the inner product of dP with the weights' tangent, moved to the tangent of the scores. *)
Theorem eq_softmax_route_differentials n_q n_k (P dP tS : tensor [n_q; n_k]) :
  let tP : tensor [n_q; n_k] := fun i j => P i j * (tS i j - rowsum (P ∘ tS) i) in
  ⟨dP, tP⟩ = ⟨P ∘ dP, tS⟩ - dot (s := [n_q; n_k]) (fun i j => P i j * rowsum (P ∘ dP) i) tS.
Proof.
  intro tP. change tP with (centered P tS). rewrite centered_adjoint. simpl. rewrite <- sum_minus.
  apply sum_ext; intros i _. rewrite <- sum_minus. apply sum_ext; intros j _. unfold centered, rowsum, hadamard. ring.
Qed.

(** Node by node, as autograd does it: the quotient E/Z sends its gradient to Z and to E, the sum Z sends its own on to
    E, and the exponential multiplies. For rows with a key; all together it is the same dS. *)
Theorem eq_softmax_node_vjps n_q n_k (M : mask) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dP : tensor [n_q; n_k]) :
  let e := E M S in
  let z := Z M S in
  let dZ := fun i => - rowsum (dP ∘ e) i / (z i * z i) in
  let dE := fun i j => dP i j / z i + dZ i in
  (forall i, (i < n_q)%nat -> live M n_k i) ->
  gradient ℓ (softmax M S) dP ->
  gradient (s := [n_q]) (fun z => ℓ (fun i j => e i j / z i)) z dZ /\
  gradient (s := [n_q; n_k]) (fun e => ℓ (fun i j => e i j / rowsum e i)) e dE /\
  gradient (fun S => ℓ (softmax M S)) S (fun i j => e i j * dE i j) /\
  forall i j, (i < n_q)%nat -> e i j * dE i j = softmax M S i j * (dP i j - rowsum (softmax M S ∘ dP) i).
Proof.
  intros e z dZ dE HL H.
  assert (Hz : forall i, (i < n_q)%nat -> 0 < z i) by (intros; apply Z_live; auto).
  assert (Hz0 : forall i, (i < n_q)%nat -> z i <> 0) by (intros i Hi; specialize (Hz i Hi); lra).
  assert (HE : forall i j, (i < n_q)%nat -> e i j * dE i j = softmax M S i j * (dP i j - rowsum (softmax M S ∘ dP) i)).
  { intros i j Hi. unfold dE, dZ, softmax. fold e z.
    replace (rowsum ((fun i j => e i j / z i) ∘ dP) i) with (rowsum (dP ∘ e) i / z i); [field; auto|].
    unfold rowsum, hadamard. rewrite sum_div. apply sum_ext; intros. unfold Rdiv. ring. }
  split; [|split; [|split]].
  - intros x t tz Hx Ht.
    eapply derive_eq; [apply (H (fun u i j => e i j / x u i) t (fun i j => - e i j * tz i / (z i * z i)));
      [now rewrite Hx|]|].
    + intros i Hi j Hj. eapply derive_eq;
        [apply (derive_div (fun _ => e i j) (fun u => x u i)); [apply derive_const|now apply Ht|]|].
      * rewrite Hx. auto.
      * cbv beta. rewrite Hx. field. auto.
    + simpl. apply sum_ext; intros i Hi. unfold dZ, rowsum, hadamard, Rdiv. rewrite <- sum_opp, !sum_r.
      apply sum_ext; intros. ring.
  - intros x t te Hx Ht.
    assert (HR : forall i, rowsum (x t) i = z i) by (intro i; rewrite Hx; reflexivity).
    eapply derive_eq; [apply (H (fun u i j => x u i j / rowsum (x u) i) t
      (fun i j => (te i j * z i - e i j * rowsum (te : tensor [n_q; n_k]) i) / (z i * z i))); [now rewrite Hx|]|].
    + intros i Hi j Hj. rewrite <- HR. replace (e i j) with (x t i j) by now rewrite Hx.
      apply (derive_div (fun u => x u i j) (fun u => rowsum (x u) i)).
      * now apply Ht.
      * apply (sum_derive n_k (fun j u => x u i j)). intros. now apply Ht.
      * rewrite HR. auto.
    + simpl. apply sum_ext; intros i Hi. unfold dE.
      transitivity (∑ j < n_k,
        (dP i j * te i j / z i - (dP i j * e i j) * (rowsum (te : tensor [n_q; n_k]) i / (z i * z i)))).
      { apply sum_ext; intros. field. auto. }
      transitivity (∑ j < n_k, (dP i j * te i j / z i + dZ i * te i j)); [|apply sum_ext; intros; unfold Rdiv; ring].
      rewrite sum_minus, sum_plus, <- (sum_r _ n_k (fun j => dP i j * e i j)), <- (sum_l (dZ i) n_k (fun j => te i j)).
      unfold dZ, rowsum, hadamard, Rdiv. ring.
  - apply (gradient_ext (s := [n_q; n_k]) _ _
      (fun i j => softmax M S i j * (dP i j - ∑ k < n_k, softmax M S i k * dP i k))).
    + intros i Hi j _. simpl. now rewrite HE.
    + exact (eq_softmax_vjp n_q n_k M S ℓ dP H).
  - exact HE.
Qed.

(** What is conserved: each row of dS sums to 0, and a push that is common to a row of dP changes nothing. *)
Theorem eq_softmax_conservation n_q n_k (M : mask) (S dP : tensor [n_q; n_k]) (c : tensor [n_q]) :
  let P := softmax M S in
  let vjp := fun (dP : tensor [n_q; n_k]) i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (forall i, ∑ j < n_k, vjp dP i j = 0) /\
  (forall i j, (j < n_k)%nat -> vjp (fun i j => dP i j + c i) i j = vjp dP i j).
Proof.
  intros P vjp. split; [intro i; apply centered_rows|]. intros i j Hj. unfold vjp.
  destruct (live_or_dead M n_k i) as [HL|HD].
  - replace (∑ k < n_k, P i k * (dP i k + c i)) with (∑ k < n_k, P i k * dP i k + c i); [ring|].
    transitivity (∑ k < n_k, (P i k * dP i k + c i * P i k)); [|apply sum_ext; intros; ring].
    rewrite sum_plus, <- sum_l. unfold P. rewrite softmax_sum by exact HL. ring.
  - unfold P. rewrite softmax_forbidden by now apply HD. ring.
Qed.

(** ** Temperature *)

(** Scores that are multiplied by a number before the softmax: they get that number times dS, and it gets Σ U dS. *)
Theorem eq_softmax_scale_vjp n_q n_k (M : mask) scale (U : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dP : tensor [n_q; n_k]) :
  let P := softmax M (scale • U) in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ P dP ->
  gradient (fun U => ℓ (softmax M (scale • U))) U (scale • dS) /\
  gradient (s := []) (fun scale => ℓ (softmax M (scale • U))) scale (∑ i < n_q, ∑ j < n_k, U i j * dS i j).
Proof.
  intros P dS H.
  exact (scaled_backward scale U (fun S => ℓ (softmax M S)) dS (eq_softmax_vjp n_q n_k M (scale • U) ℓ dP H)).
Qed.

(** Scores that are divided by a temperature τ. *)
Theorem eq_softmax_temperature_vjp n_q n_k (M : mask) (τ : R) (U : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dP : tensor [n_q; n_k]) :
  let P := softmax M ((1 / τ) • U) in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  τ <> 0 ->
  gradient ℓ P dP ->
  gradient (s := []) (fun τ => ℓ (softmax M ((1 / τ) • U))) τ (- (1 / (τ * τ)) * ∑ i < n_q, ∑ j < n_k, U i j * dS i j).
Proof.
  intros P dS Hτ H x t tτ Hx Ht.
  assert (Hs : gradient (s := []) (fun scale => ℓ (softmax M (scale • U))) (1 / τ)
    (∑ i < n_q, ∑ j < n_k, U i j * dS i j))
    by exact (proj2 (eq_softmax_scale_vjp n_q n_k M (1 / τ) U ℓ dP H)).
  eapply derive_eq; [apply (Hs (fun u => 1 / x u) t (- (1 / (τ * τ)) * tτ)); [now rewrite Hx|]|].
  - simpl. eapply derive_eq; [apply (derive_div (fun _ => 1) x t 0 tτ); [apply derive_const|exact Ht|now rewrite Hx]|].
    cbv beta. rewrite Hx. field. exact Hτ.
  - simpl. ring.
Qed.

(** ** Log-sum-exp *)

(** One number a row, L, is enough to make the weights again. *)
Theorem eq_softmax_from_logsumexp n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j :
  (j < n_k)%nat -> M i j = true -> softmax M S i j = exp (S i j - logsumexp M S i).
Proof.
  intros Hj HM. pose proof (Z_pos M S i j Hj HM) as HZ. unfold logsumexp, softmax, E.
  rewrite HM. unfold Rminus. rewrite exp_plus, exp_Ropp, exp_ln by exact HZ. reflexivity.
Qed.

(** The gradient of log-sum-exp is softmax: dL_i is handed out in the proportions of the weights. In a dead row L is a
    constant here (Coq's ln 0 = 0). *)
Theorem eq_logsumexp_vjp n_q n_k (M : mask) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q] -> R) (dL : tensor [n_q]) :
  let P := softmax M S in
  gradient ℓ (logsumexp M S) dL ->
  gradient (fun S => ℓ (logsumexp M S)) S (fun i j => dL i * P i j).
Proof.
  intro P. apply (backward (logsumexp M) S (fun tS => (fun i => ∑ k < n_k, P i k * tS i k) : tensor [n_q]) ℓ dL).
  - intros x t tS Hx Ht. unfold P. rewrite <- Hx. now apply logsumexp_moves.
  - intro tS. simpl. apply sum_ext; intros i _. rewrite sum_l. apply sum_ext; intros. ring.
Qed.

(** When the scores move, L moves at the row's average speed. In a dead row L is a constant here (Coq's ln 0 = 0). *)
Theorem eq_logsumexp_jvp n_q n_k (M : mask) (S : R -> tensor [n_q; n_k]) t (tS : tensor [n_q; n_k]) :
  let P := softmax M (S t) in
  moves S t tS -> moves (s := [n_q]) (fun u => logsumexp M (S u)) t (fun i => ∑ k < n_k, P i k * tS i k).
Proof. apply logsumexp_moves. Qed.

(** L may be computed with any m_i taken out first, such as the row's largest score. *)
Theorem logsumexp_stable n_q n_k (M : mask) (S : tensor [n_q; n_k]) (m : tensor [n_q]) i :
  live M n_k i -> logsumexp M S i = m i + logsumexp (m := n_q) (n := n_k) M (fun i j => S i j - m i) i.
Proof.
  intro HL. pose proof (Z_shift M S (fun i => - m i) i) as HZ. unfold logsumexp, Rminus. rewrite HZ.
  rewrite ln_mult, ln_exp; [ring|apply exp_pos|now apply Z_live].
Qed.

(** Cross-entropy with targets whose rows sum to 1 (and are 0 at forbidden keys): the gradient is one subtraction, p −
    y. *)
Theorem eq_cross_entropy_vjp n_q n_k (M : mask) (S y : tensor [n_q; n_k]) :
  (forall i, (i < n_q)%nat -> ∑ j < n_k, y i j = 1) ->
  (forall i j, M i j = false -> y i j = 0) ->
  gradient (fun S => - (∑ i < n_q, ∑ j < n_k, y i j * ln (softmax M S i j))) S (fun i j => softmax M S i j - y i j).
Proof.
  intros Hy H0 x t tS Hx Ht. rewrite <- Hx. clear S Hx.
  eapply derive_eq.
  - apply derive_opp. apply (sum_derive n_q (fun i u => ∑ j < n_k, y i j * ln (softmax M (x u) i j)) t
      (fun i => ∑ j < n_k, y i j * (tS i j - ∑ k < n_k, softmax M (x t) i k * tS i k))). intros i Hi.
    apply (sum_derive n_k (fun j u => y i j * ln (softmax M (x u) i j))). intros j Hj. destruct (M i j) eqn:HM.
    + apply (derive_scale (y i j) (fun u => ln (softmax M (x u) i j))).
      apply (is_derive_ext (fun u => x u i j - logsumexp M (x u) i)).
      * intro u. rewrite (eq_softmax_from_logsumexp n_q n_k M (x u) i j Hj HM). now rewrite ln_exp.
      * apply (derive_minus (fun u => x u i j) (fun u => logsumexp M (x u) i)); [now apply Ht|].
        now apply (logsumexp_moves M x t tS Ht i Hi).
    + rewrite H0 by exact HM. eapply derive_eq; [apply (derive_scale 0 (fun u => ln (softmax M (x u) i j)))|]; [|ring].
      apply (is_derive_ext (fun _ => ln 0)); [intro; now rewrite softmax_forbidden|apply derive_const].
  - simpl. rewrite <- sum_opp. apply sum_ext; intros i Hi. set (a := ∑ k < n_k, softmax M (x t) i k * tS i k).
    transitivity (- (∑ j < n_k, (y i j * tS i j - a * y i j))); [f_equal; apply sum_ext; intros; ring|].
    transitivity (∑ j < n_k, (softmax M (x t) i j * tS i j - y i j * tS i j)); [|apply sum_ext; intros; ring].
    rewrite !sum_minus, <- sum_l, Hy by exact Hi. fold a. ring.
Qed.

(** Log-softmax R = S − L, with every key allowed: its gradient goes straight to S, and minus its row sum goes to L,
    which hands it out. *)
Theorem eq_log_softmax_vjp n_q n_k (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dR : tensor [n_q; n_k]) :
  let P := softmax everything S in
  gradient (s := [n_q; n_k]) ℓ (fun i j => S i j - logsumexp everything S i) dR ->
  gradient (s := [n_q; n_k]) (fun S => ℓ (fun i j => S i j - logsumexp everything S i)) S
    (fun i j => dR i j - P i j * ∑ k < n_k, dR i k).
Proof.
  intro P.
  apply (backward (fun S : tensor [n_q; n_k] => (fun i j => S i j - logsumexp everything S i) : tensor [n_q; n_k]) S
    (fun tS => (fun i j => tS i j - ∑ k < n_k, P i k * tS i k) : tensor [n_q; n_k]) ℓ dR).
  - intros x t tS Hx Ht i Hi j Hj.
    apply (derive_minus (fun u => x u i j) (fun u => logsumexp everything (x u) i)); [now apply Ht|].
    unfold P. rewrite <- Hx. now apply (logsumexp_moves everything x t tS Ht i Hi).
  - intro tS. simpl. apply sum_ext; intros i _. set (a := ∑ k < n_k, P i k * tS i k). set (r := ∑ k < n_k, dR i k).
    transitivity (∑ j < n_k, (dR i j * tS i j - a * dR i j)); [apply sum_ext; intros; ring|].
    transitivity (∑ j < n_k, (dR i j * tS i j - r * (P i j * tS i j))); [|apply sum_ext; intros; ring].
    rewrite !sum_minus, <- !sum_l. fold a. change (sum n_k (dR i)) with r. ring.
Qed.

(** ** Forbidden keys *)

(** A forbidden key has the weight 0, and its entries in the formulas of dS and of the moving weights are 0. Exactly,
    not nearly. *)
Theorem eq_softmax_masked n_q n_k (M : mask) (S dP tS : tensor [n_q; n_k]) i j :
  let P := softmax M S in
  M i j = false ->
  P i j = 0 /\ P i j * (dP i j - ∑ k < n_k, P i k * dP i k) = 0 /\ P i j * (tS i j - ∑ k < n_k, P i k * tS i k) = 0.
Proof.
  intros P HM. assert (HP : P i j = 0) by now apply softmax_forbidden.
  rewrite HP. split; [reflexivity|split; ring].
Qed.

(** What the score −∞ means: with a number x in place of each forbidden score, the softmax of a live row tends to the
    masked one as x goes to −∞. *)
Theorem eq_softmax_masked__limit n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j :
  live M n_k i ->
  is_lim (fun x => softmax (m := n_q) (n := n_k) everything (fun i j => if M i j then S i j else x) i j) m_infty
    (softmax M S i j).
Proof.
  intro HL. pose proof (Z_live M S i HL) as HZ.
  assert (HE : forall k, is_lim (fun x => E (m := n_q) (n := n_k) everything (fun i j => if M i j then S i j else x) i
    k) m_infty (E M S i k)).
  { intro k. unfold E, everything. destruct (M i k); [apply is_lim_const|exact is_lim_exp_m]. }
  assert (HS : forall n,
    is_lim (fun x => ∑ k < n, E (m := n_q) (n := n_k) everything (fun i j => if M i j then S i j else x) i k)
      m_infty (∑ k < n, E M S i k)).
  { induction n as [|n IH]; simpl; [apply is_lim_const|]. now apply is_lim_plus'. }
  apply (is_lim_div _ _ m_infty (E M S i j) (Z M S i) (HE j) (HS n_k)); [|exact I].
  intro H. injection H. lra.
Qed.

(** ** Two keys, and one more *)

(** The row (x, 0): its L is the softplus, ln(e^x + 1), its first weight the sigmoid. The first derivative of L is that
    weight p, the second p (1 − p). *)
Theorem eq_softplus_derivatives x :
  let row : R -> tensor [1%nat; 2%nat] := fun x i j => if (j =? 0)%nat then x else 0 in
  let L := fun x => logsumexp everything (row x) 0%nat in
  let p := fun x => softmax everything (row x) 0%nat 0%nat in
  is_derive L x (p x) /\ is_derive p x (p x * (1 - p x)) /\ L x = ln (exp x + 1) /\ p x = 1 / (1 + exp (- x)).
Proof.
  intros row L p.
  assert (Hm : forall t, moves (s := [1%nat; 2%nat]) row t (fun i j => if (j =? 0)%nat then 1 else 0)).
  { intros t i Hi j Hj. unfold row. destruct (j =? 0)%nat;
      [apply is_derive_Reals, derivable_pt_lim_id|apply derive_const]. }
  split; [|split; [|split]].
  - eapply derive_eq; [exact (logsumexp_moves everything row x _ (Hm x) 0%nat ltac:(lia))|]. unfold p. simpl. ring.
  - eapply derive_eq; [exact (softmax_moves everything row x _ (Hm x) 0%nat ltac:(lia) 0%nat ltac:(lia))|].
    unfold centered, p. simpl. ring.
  - unfold L, logsumexp, Z, E, everything, row. simpl. f_equal. rewrite exp_0. ring.
  - unfold p, softmax, Z, E, everything, row. simpl. rewrite exp_0, exp_Ropp. pose proof (exp_pos x). field. lra.
Qed.

(** One key leads m equal ones by a gap Δ: its weight, how fast it grows with the gap, and how fast at most. *)
Theorem eq_softmax_gap m c Δ :
  let row : R -> tensor [1%nat; S m] := fun Δ i j => if (j =? 0)%nat then c + Δ else c in
  let p := fun Δ => softmax everything (row Δ) 0%nat 0%nat in
  p Δ = 1 / (1 + INR m * exp (- Δ)) /\ is_derive p Δ (p Δ * (1 - p Δ)) /\ p Δ * (1 - p Δ) <= 1 / 4.
Proof.
  intros row p.
  assert (Hsum : forall f : nat -> R, ∑ k < S m, f k = f 0%nat + ∑ k < m, f (S k)).
  { intro f. change (S m) with (1 + m)%nat. rewrite sum_add. simpl. ring. }
  assert (Hm : moves (s := [1%nat; S m]) row Δ (fun i j => if (j =? 0)%nat then 1 else 0)).
  { intros i Hi j Hj. unfold row. destruct (j =? 0)%nat; [|apply derive_const].
    eapply derive_eq; [apply derive_plus; [apply derive_const|apply is_derive_Reals, derivable_pt_lim_id]|ring]. }
  split; [|split].
  - unfold p, softmax, Z. rewrite Hsum. unfold E, everything, row. simpl. rewrite sum_const.
    rewrite exp_plus, exp_Ropp. pose proof (exp_pos c). pose proof (exp_pos Δ). pose proof (pos_INR m).
    field. split; [lra|split; [lra|]]. assert (0 <= INR m * exp c) by (apply Rmult_le_pos; lra). nra.
  - eapply derive_eq; [exact (softmax_moves everything row Δ _ Hm 0%nat ltac:(lia) 0%nat ltac:(lia))|].
    unfold centered, p. rewrite Hsum. simpl. rewrite sum_0; [ring|intros; ring].
  - generalize (p Δ). intro q. pose proof (Rle_0_sqr (q - 1 / 2)) as Hq. unfold Rsqr in Hq. lra.
Qed.

(** Softmax off by one: a 1 more in the denominator. *)
Definition softmax_off_by_one {m n} (M : mask) (S : tensor [m; n]) : tensor [m; n] :=
  fun i j => E M S i j / (1 + Z M S i).

Lemma Z_nonneg {m n} M (S : tensor [m; n]) i : 0 <= Z M S i.
Proof. apply sum_nonneg. intros. apply E_nonneg. Qed.

(** A 1 more in the denominator: the formula of dS stays, with the new weights, and its rows sum to D (1 − the row's
    weight). *)
Theorem eq_off_by_one_vjp n_q n_k (M : mask) (S : tensor [n_q; n_k]) (ℓ : tensor [n_q; n_k] -> R)
    (dP : tensor [n_q; n_k]) :
  let P := softmax_off_by_one M S in
  let D := fun i => ∑ k < n_k, P i k * dP i k in
  let dS := fun i j => P i j * (dP i j - D i) in
  gradient ℓ P dP ->
  gradient (fun S => ℓ (softmax_off_by_one M S)) S dS /\
  forall i, ∑ j < n_k, dS i j = D i * (1 - ∑ j < n_k, P i j).
Proof.
  intros P D dS H. split.
  - apply (backward (softmax_off_by_one M) S (centered P) ℓ dP); [|apply centered_adjoint|exact H].
    intros x t tS Hx Ht i Hi j Hj. unfold P. rewrite <- Hx. pose proof (Z_nonneg M (x t) i) as HZ.
    eapply derive_eq.
    + apply (derive_div (fun u => E M (x u) i j) (fun u => 1 + Z M (x u) i));
        [exact (E_derive M x t tS i j Ht Hi Hj)| |lra].
      apply (derive_plus (fun _ => 1) (fun u => Z M (x u) i)); [apply derive_const|exact (Z_derive M x t tS i Ht Hi)].
    + unfold centered, softmax_off_by_one.
      replace (∑ k < n_k, E M (x t) i k / (1 + Z M (x t) i) * tS i k)
        with ((∑ k < n_k, E M (x t) i k * tS i k) / (1 + Z M (x t) i)).
      * field. lra.
      * rewrite sum_div. apply sum_ext; intros. unfold Rdiv. ring.
  - intro i. unfold dS. transitivity (∑ j < n_k, (P i j * dP i j - D i * P i j)); [apply sum_ext; intros; ring|].
    rewrite sum_minus, <- (sum_l (D i) n_k (fun j => P i j)). fold (D i). ring.
Qed.

(** Softmax off by one is the ordinary softmax with one key more, whose score is 0. *)
Theorem off_by_one_is_one_key_more n_q n_k (M : mask) (S : tensor [n_q; n_k]) i j :
  (j < n_k)%nat ->
  softmax_off_by_one M S i j =
  softmax (m := n_q) (n := 1 + n_k) (fun i j => if (j =? n_k)%nat then true else M i j)
    (fun i j => if (j =? n_k)%nat then 0 else S i j) i j.
Proof.
  intro Hj. unfold softmax_off_by_one, softmax, Z, E. cbn [sum Nat.add]. rewrite Nat.eqb_refl, exp_0.
  destruct (Nat.eqb_spec j n_k) as [->|_]; [lia|]. f_equal. rewrite Rplus_comm. f_equal.
  apply sum_ext; intros k Hk. destruct (Nat.eqb_spec k n_k) as [->|_]; [lia|reflexivity].
Qed.

(** ** The first head (chapter 1) *)

(** Two keys share a cake: when the first score rises, the first weight gains P_00 (1 − P_00), and the second loses
    P_01 P_00. For any number of keys, and any mask. *)
Theorem eq_first_shares n_q n_k (M : mask) (S : tensor [n_q; n_k]) :
  let P := softmax M S in
  (0 < n_q)%nat -> (1 < n_k)%nat ->
  is_derive (fun u => softmax M (along (s := [n_q; n_k]) S u (unit 0 0)) 0%nat 0%nat) 0
    (P 0%nat 0%nat * (1 - P 0%nat 0%nat)) /\
  is_derive (fun u => softmax M (along (s := [n_q; n_k]) S u (unit 0 0)) 0%nat 1%nat) 0
    (- P 0%nat 1%nat * P 0%nat 0%nat).
Proof.
  intros P Hq Hk. split.
  - exact (proj1 (eq_softmax_jacobian n_q n_k M S 0 0 0 Hq ltac:(lia) ltac:(lia))).
  - eapply derive_eq; [exact (proj1 (eq_softmax_jacobian n_q n_k M S 0 1 0 Hq Hk ltac:(lia)))|].
    unfold δ, P. simpl. ring.
Qed.
