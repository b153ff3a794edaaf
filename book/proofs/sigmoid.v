(** * Sigmoid attention, and gates (chapter 9)

    The sigmoid looks at one number alone: no row, no sum, no dead rows. *)

From attnbook Require Export steps.

Definition sigmoid (x : R) : R := 1 / (1 + exp (- x)).

Lemma sigmoid_below_1 x : 0 < sigmoid x < 1.
Proof.
  unfold sigmoid, Rdiv. rewrite Rmult_1_l. pose proof (exp_pos (- x)). split; [apply Rinv_0_lt_compat; lra|].
  rewrite <- Rinv_1 at 2. apply Rinv_lt_contravar; lra.
Qed.

(** The derivative of the sigmoid is sigmoid times 1 − sigmoid. *)
Theorem eq_var_sigmoid__derivative (x : R) : is_derive sigmoid x (sigmoid x * (1 - sigmoid x)).
Proof.
  pose proof (exp_pos (- x)). unfold sigmoid. eapply derive_eq.
  - apply (derive_div (fun _ => 1) (fun x => 1 + exp (- x)) x 0 (0 + exp (- x) * - 1)); [apply derive_const| |lra].
    apply (derive_plus (fun _ => 1) (fun x => exp (- x))); [apply derive_const|].
    apply (derive_exp (fun x => - x)). apply (derive_opp (fun x => x)). apply is_derive_Reals, derivable_pt_lim_id.
  - field. lra.
Qed.

(** The weights of sigmoid attention; where the mask forbids, the weight is 0. *)
Definition sigmoid_weights {m n} (M : mask) (S : tensor [m; n]) : tensor [m; n] :=
  fun i j => if M i j then sigmoid (S i j) else 0.

Lemma sigmoid_back {m n} (M : mask) (S : tensor [m; n]) (ℓ : tensor [m; n] -> R) dP :
  let P := sigmoid_weights M S in
  gradient ℓ P dP -> gradient (fun S => ℓ (sigmoid_weights M S)) S (fun i j => P i j * (1 - P i j) * dP i j).
Proof.
  intro P. apply (entrywise (fun i j x => if M i j then sigmoid x else 0) (fun i j => P i j * (1 - P i j)) S ℓ dP).
  intros i j _ _. unfold P, sigmoid_weights. destruct (M i j); [apply eq_var_sigmoid__derivative|].
  eapply derive_eq; [apply derive_const|ring].
Qed.

(** In the whole head, from dO back, with any mask: dS = P (1 − P) dP, entry by entry. *)
Theorem eq_var_sigmoid n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P := fun i j => if M i j then 1 / (1 + exp (- scores scale Q K B i j)) else 0 in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (1 - P i j) * dP i j in
  gradient ℓ (P × V) dO ->
  gradient (fun B => ℓ (sigmoid_weights M (scores scale Q K B) × V)) B dS /\
  gradient (fun Q => ℓ (sigmoid_weights M (scores scale Q K B) × V)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (sigmoid_weights M (scores scale Q K B) × V)) K (scale • (dS^T × Q)) /\
  gradient (fun V => ℓ (P × V)) V (P^T × dO).
Proof.
  intros P dP dS H.
  set (back := (fun dP i j => P i j * (1 - P i j) * dP i j) : tensor [n_q; n_k] -> tensor [n_q; n_k]).
  pose proof (around_any_step n_q n_k d_k d_v scale Q K V B (sigmoid_weights M) back ℓ dO) as HW. cbv zeta in HW.
  destruct HW as [HQ [HK [HV [HB _]]]]; [|exact H|exact (conj HB (conj HQ (conj HK HV)))].
  intros ℓ' dP' H'. exact (sigmoid_back M (scores scale Q K B) ℓ' dP' H').
Qed.

(** Every dS has the sign of its dP, and other keys have no say in it. *)
Theorem sigmoid_keeps_the_sign (s dP : R) :
  let P := sigmoid s in let dS := P * (1 - P) * dP in (0 < dP -> 0 < dS) /\ (dP < 0 -> dS < 0) /\ (dP = 0 -> dS = 0).
Proof.
  intros P dS. pose proof (sigmoid_below_1 s) as [H0 H1]. fold P in H0, H1.
  assert (0 < P * (1 - P)) by (apply Rmult_lt_0_compat; lra). unfold dS. repeat split; intro; nra.
Qed.

(** ** Gates *)

Definition gate {m n} (A : tensor [m; n]) : tensor [m; n] := fun i l => sigmoid (A i l).

(** One gate for each column: G = sigmoid(X W_G), O' = G ∘ O. Attention gets G ∘ dO'; the gate's numbers get
    G (1 − G) dO' O, from where the weights and the input have their gradients as in any linear map. *)
Theorem eq_var_gate n d d_v (X : tensor [n; d]) (W_G : tensor [d; d_v]) (O : tensor [n; d_v]) (ℓ : tensor [n; d_v] -> R)
    (dO' : tensor [n; d_v]) :
  let G := gate (X × W_G) in
  let dA := fun i l => G i l * (1 - G i l) * dO' i l * O i l in
  gradient ℓ (G ∘ O) dO' ->
  gradient (fun O => ℓ (G ∘ O)) O (G ∘ dO') /\
  gradient (fun A => ℓ (gate A ∘ O)) (X × W_G) dA /\
  gradient (fun W_G => ℓ (gate (X × W_G) ∘ O)) W_G (X^T × dA) /\
  gradient (fun X => ℓ (gate (X × W_G) ∘ O)) X (dA × W_G^T).
Proof.
  intros G dA H.
  assert (HA : gradient (fun A => ℓ (gate A ∘ O)) (X × W_G) dA).
  { refine (gradient_ext (s := [n; d_v]) _ _ (fun i l => G i l * (1 - G i l) * O i l * dO' i l) _ _ _);
      [intros i _ l _; simpl; unfold dA; ring|].
    refine (entrywise (fun i l x => sigmoid x * O i l) (fun i l => G i l * (1 - G i l) * O i l) (X × W_G) ℓ dO' _ H).
    intros i l _ _. eapply derive_eq; [apply (derive_mult sigmoid (fun _ => O i l));
      [apply eq_var_sigmoid__derivative|apply derive_const]|].
    cbv beta. unfold G, gate. ring. }
  repeat apply conj.
  - refine (entrywise (fun i l x => G i l * x) G O ℓ dO' _ H). intros i l _ _.
    eapply derive_eq; [apply (derive_scale (G i l) (fun x => x)); apply is_derive_Reals, derivable_pt_lim_id|ring].
  - exact HA.
  - exact (product_r X W_G (fun A => ℓ (gate A ∘ O)) dA HA).
  - exact (product_l X W_G (fun A => ℓ (gate A ∘ O)) dA HA).
Qed.

(** In the whole head, from dO' back to the queries, keys and values. *)
Theorem eq_var_gate__head n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (G : tensor [n_q; d_v]) (ℓ : tensor [n_q; d_v] -> R)
    (dO' : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let dO := G ∘ dO' in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  gradient ℓ (G ∘ attention M scale Q K V B) dO' ->
  gradient (fun Q => ℓ (G ∘ attention M scale Q K V B)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (G ∘ attention M scale Q K V B)) K (scale • (dS^T × Q)) /\
  gradient (fun V => ℓ (G ∘ attention M scale Q K V B)) V (P^T × dO).
Proof.
  intros P dO dP dS H.
  assert (HO : gradient (fun O => ℓ (G ∘ O)) (attention M scale Q K V B) dO).
  { refine (entrywise (fun i l x => G i l * x) G (attention M scale Q K V B) ℓ dO' _ H). intros i l _ _.
    eapply derive_eq; [apply (derive_scale (G i l) (fun x => x)); apply is_derive_Reals, derivable_pt_lim_id|ring]. }
  repeat apply conj.
  - exact (gradient_Q M scale Q K V B (fun O => ℓ (G ∘ O)) dO HO).
  - exact (gradient_K M scale Q K V B (fun O => ℓ (G ∘ O)) dO HO).
  - exact (gradient_V M scale Q K V B (fun O => ℓ (G ∘ O)) dO HO).
Qed.

(** One gate for a whole row: its number gets the sum over the columns, which is (1 − G) D with D = dO · O. *)
Theorem eq_var_gate__row n d_v (A : tensor [n]) (O : tensor [n; d_v]) (ℓ : tensor [n; d_v] -> R)
    (dO' : tensor [n; d_v]) :
  let G := fun i => sigmoid (A i) in
  let dO := fun i l => G i * dO' i l in
  let D := fun i => ∑ l < d_v, dO i l * O i l in
  gradient ℓ (fun i l => G i * O i l) dO' ->
  gradient (fun O : tensor [n; d_v] => ℓ (fun i l => G i * O i l)) O dO /\
  gradient (s := [n]) (fun A => ℓ (fun i l => sigmoid (A i) * O i l)) A (fun i => (1 - G i) * D i) /\
  (forall i, (1 - G i) * D i = ∑ l < d_v, G i * (1 - G i) * dO' i l * O i l).
Proof.
  intros G dO D H.
  assert (HD : forall i, (1 - G i) * D i = ∑ l < d_v, G i * (1 - G i) * dO' i l * O i l).
  { intro i. unfold D, dO. rewrite sum_l. apply sum_ext; intros. ring. }
  repeat apply conj; [| |exact HD].
  - refine (entrywise (fun i _ x => G i * x) (fun i _ => G i) O ℓ dO' _ H). intros i l _ _.
    eapply derive_eq; [apply (derive_scale (G i) (fun x => x)); apply is_derive_Reals, derivable_pt_lim_id|ring].
  - refine (backward (s := [n]) (r := [n; d_v]) (fun A i l => sigmoid (A i) * O i l) A
      (fun tA i l => G i * (1 - G i) * tA i * O i l) ℓ dO' _ _ _ H).
    + intros x t tX Hx Ht i Hi l Hl. subst A. eapply derive_eq.
      * apply (derive_mult (fun u => sigmoid (x u i)) (fun _ => O i l)); [|apply derive_const].
        apply (derive_after sigmoid (fun u => x u i)); [apply eq_var_sigmoid__derivative|now apply Ht].
      * cbv beta. unfold G. ring.
    + intro tA. simpl. apply sum_ext; intros i _. rewrite HD, sum_r. apply sum_ext; intros. ring.
Qed.
