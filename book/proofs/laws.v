(** * Which laws survive which variant (chapter 9)

    The two laws that chapter 9 writes down, for the plain head, and where its table says YES for a reason that one
    proof can give. *)

From attnbook Require Export rotary norms.

(** ** The chapter's theorems *)

(** Whatever gradient dS comes to scale · Q Kᵀ, through a cap, a sink, a sigmoid or dropout: Qᵀ dQ = (Kᵀ dK)ᵀ, and so
    their traces agree. *)
Theorem law_of_the_products n_q n_k d_k scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (dS : tensor [n_q; n_k]) :
  let dQ := scale • (dS × K) in
  let dK := scale • (dS^T × Q) in
  equal (Q^T × dQ) ((K^T × dK)^T) /\ ⟨Q, dQ⟩ = ⟨K, dK⟩.
Proof.
  intros dQ dK. split.
  - intros k _ l _. unfold dQ, dK, scaled, matmul, transpose. cbn [equal].
    transitivity (∑ i < n_q, ∑ j < n_k, scale * Q i k * dS i j * K j l).
    { apply sum_ext; intros i _. rewrite !sum_l. apply sum_ext; intros. ring. }
    rewrite sum_swap. apply sum_ext; intros j _. rewrite !sum_l. apply sum_ext; intros. ring.
  - unfold dQ, dK. rewrite !dot_scaled_r. f_equal.
    rewrite dot_matmul_r, (dot_comm (Q × K^T) dS), dot_matmul_r, dot_comm, (dot_matmul_l K dS^T Q), dot_comm. reflexivity.
Qed.

(** The plain head, with any mask, scale and bias: Q ∘ dQ and K ∘ dK have the same sum, by the formulas of dQ and dK,
    and D of a row is dO·O. *)
Theorem eq_var_laws n_q n_k d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) :
  let P := weights M scale Q K B in
  let O := P × V in
  let dP := dO × V^T in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let dQ := scale • (dS × K) in
  let dK := scale • (dS^T × Q) in
  ∑ i < n_q, ∑ l < d_k, Q i l * dQ i l = ∑ j < n_k, ∑ l < d_k, K j l * dK j l
  /\ forall i, ∑ j < n_k, P i j * dP i j = ∑ c < d_v, dO i c * O i c.
Proof.
  intros P O dP dS dQ dK. split.
  - exact (proj2 (law_of_the_products n_q n_k d_k scale Q K dS)).
  - intro i. apply average_of_products.
Qed.

(** The trace survives a rotation of queries and keys: here R dQ', R dK' are turned back by the opposite positions. *)
Theorem law_survives_rotation n_q n_k d_k scale lay m θ pos_q pos_k (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (dS : tensor [n_q; n_k]) :
  let Q' := rotary lay m θ pos_q Q in
  let K' := rotary lay m θ pos_k K in
  let dQ := rotary lay m θ (fun i => - pos_q i) (scale • (dS × K')) in
  let dK := rotary lay m θ (fun j => - pos_k j) (scale • (dS^T × Q')) in
  (2 * m <= d_k)%nat ->
  ⟨Q, dQ⟩ = ⟨K, dK⟩.
Proof.
  intros Q' K' dQ dK Hm. unfold dQ, dK. rewrite !(dot_comm _ (rotary _ _ _ _ (_ • _))), <- !rotary_adjoint by exact Hm.
  rewrite (dot_comm _ (rotary lay m θ pos_q Q)), (dot_comm _ (rotary lay m θ pos_k K)).
  exact (proj2 (law_of_the_products n_q n_k d_k scale Q' K' dS)).
Qed.

(** The trace survives a normalization with eps = 0, whatever comes back to the normalized rows: both sides are 0. *)
Theorem law_survives_norm n_q n_k d_k (Q dQ' : tensor [n_q; d_k]) (K dK' : tensor [n_k; d_k]) :
  let Q' := l2_norm Q in
  let K' := l2_norm K in
  let dQ : tensor [n_q; d_k] := fun i a => 1 / length Q i * (dQ' i a - Q' i a * ∑ b < d_k, Q' i b * dQ' i b) in
  let dK : tensor [n_k; d_k] := fun j a => 1 / length K j * (dK' j a - K' j a * ∑ b < d_k, K' j b * dK' j b) in
  (forall i, (i < n_q)%nat -> length Q i <> 0) ->
  (forall j, (j < n_k)%nat -> length K j <> 0) ->
  ⟨Q, dQ⟩ = 0 /\ ⟨K, dK⟩ = 0.
Proof.
  intros Q' K' dQ dK HQ HK.
  split; apply sum_0; intros i Hi; [exact (eq_var_norm_orthogonal n_q d_k Q dQ' i (HQ i Hi))|].
  exact (eq_var_norm_orthogonal n_k d_k K dK' i (HK i Hi)).
Qed.

(** dV sums to what dO sums to where the weights that meet V, however they were made, sum to 1 in each row. *)
Theorem law_of_the_values n_q n_k d_v (P' : tensor [n_q; n_k]) (dO : tensor [n_q; d_v]) c :
  (forall i, (i < n_q)%nat -> ∑ j < n_k, P' i j = 1) ->
  ∑ j < n_k, (P'^T × dO) j c = ∑ i < n_q, dO i c.
Proof.
  intro H. unfold matmul, transpose. rewrite sum_swap. apply sum_ext; intros i Hi. rewrite <- sum_r, H by exact Hi. ring.
Qed.

(** D is dO·O wherever the weights that meet V are P times factors, entry by entry. *)
Theorem law_of_D n_q n_k d_v (P factor : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (dO : tensor [n_q; d_v]) i :
  let O := (P ∘ factor) × V in
  let dP := (dO × V^T) ∘ factor in
  ∑ j < n_k, P i j * dP i j = ∑ c < d_v, dO i c * O i c.
Proof.
  intros O dP. unfold O. rewrite <- average_of_products. apply sum_ext; intros. unfold dP, hadamard. ring.
Qed.

(** A normalization breaks the law of the keys: one query (1, 1), two keys (1, 0) and (0, 1), values 0 and 1. A bias on
    the keys, before the norm, has the gradient (1/4, −1/4). *)
Theorem norm_key_bias_not_zero :
  let Q : tensor [1; 2]%nat := fun _ _ => 1 in
  let K : tensor [2; 2]%nat := fun j a => if j =? a then 1 else 0 in
  let V : tensor [2; 1]%nat := fun j _ => INR j in
  let B : tensor [1; 2]%nat := fun _ _ => 0 in
  let loss (b_K : tensor [2%nat]) := attention everything 1 Q (l2_norm (add_row K b_K)) V B O O in
  gradient loss (fun _ => 0) (fun a => if a =? 0 then 1 / 4 else - (1 / 4))
  /\ ~ gradient loss (fun _ => 0) (fun _ => 0).
Proof.
  intros Q K V B loss.
  assert (HL : forall j, (j < 2)%nat -> length (add_row K (fun _ => 0)) j = 1).
  { intros j Hj. assert (Ej : j = 0%nat \/ j = 1%nat) by lia. unfold length, add_row, K. transitivity (sqrt 1); [f_equal|apply sqrt_1].
    destruct Ej as [-> | ->]; simpl; ring. }
  assert (EN : forall j a, (j < 2)%nat -> l2_norm (add_row K (fun _ => 0)) j a = K j a).
  { intros j a Hj. unfold l2_norm. rewrite HL by exact Hj. unfold add_row. field. }
  assert (EP : forall j, (j < 2)%nat -> weights everything 1 Q (l2_norm (add_row K (fun _ => 0))) B 0%nat j = 1 / 2).
  { assert (ES : forall j, (j < 2)%nat -> scores 1 Q (l2_norm (add_row K (fun _ => 0))) B 0%nat j = 1).
    { intros j Hj. assert (Ej : j = 0%nat \/ j = 1%nat) by lia. unfold scores, add, scaled, matmul, transpose. cbn [sum].
      rewrite !EN by exact Hj. unfold Q, B, K. destruct Ej as [-> | ->]; simpl; ring. }
    intros j Hj. unfold weights, softmax, Z, E, everything. cbn [sum]. rewrite !ES by lia. pose proof (exp_pos 1). field. lra. }
  assert (H : gradient loss (fun _ => 0) (fun a => if a =? 0 then 1 / 4 else - (1 / 4))).
  { assert (HO : forall O : tensor [1; 1]%nat, gradient (fun O : tensor [1; 1]%nat => O 0%nat 0%nat) O (fun _ _ => 1)).
    { intros O x t tX Hx Ht. eapply derive_eq; [exact (Ht 0%nat ltac:(lia) 0%nat ltac:(lia))|]. simpl. now rewrite Rmult_1_l, !Rplus_0_l. }
    pose proof (eq_dK 1 2 2 1 everything 1 Q (l2_norm (add_row K (fun _ => 0))) V B (fun O => O 0%nat 0%nat) (fun _ _ => 1) (HO _)) as G.
    cbv zeta in G. apply eq_var_norm_vjp in G; [|intros i Hi; rewrite HL by exact Hi; lra].
    apply (add_row_vjp K (fun _ => 0) (fun K => attention everything 1 Q (l2_norm K) V B 0%nat 0%nat)) in G.
    refine (gradient_ext _ _ _ _ _ G). intros a Ha. assert (Ea : a = 0%nat \/ a = 1%nat) by lia.
    unfold scaled, matmul, transpose. cbn [sum equal]. rewrite !EP, !HL, !EN by lia. unfold K, Q, V.
    destruct Ea as [-> | ->]; simpl; field. }
  split; [exact H|]. intro H0. pose proof (gradient_unique (s := [2%nat]) _ _ _ _ (fun a => if a =? 0 then 1 else 0) H H0) as C.
  simpl in C. lra.
Qed.
