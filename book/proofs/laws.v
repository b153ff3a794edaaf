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

(** The plain head, with any mask, scale and bias: the queries with their gradients make the same sum as the keys with
    theirs, and D of a row is dO·O. *)
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

(** It survives a normalization with eps = 0, whatever comes back to the normalized rows: both sides are 0. *)
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
