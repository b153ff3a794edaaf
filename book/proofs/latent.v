(** * Latent keys and values: MLA (chapter 9)

    C is the latent X_lat = X W_lat, one narrow row a token. Head r makes its keys and values from it, by U_K.[r] and
    U_V.[r]; heads are counted from 0 to h − 1. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export head.

(** Keys or values of all heads. *)
Definition unpacked {h n d_c d} (C : tensor [n; d_c]) (U : tensor [h; d_c; d]) : tensor [h; n; d] := fun r => C × U.[r].

Lemma unpacked_C {h n d_c d} (A : tensor [h; n; d]) (U : tensor [h; d_c; d]) (tC : tensor [n; d_c]) :
  ⟨A, unpacked tC U⟩ = dot (s := [n; d_c]) (fun j a => ∑ r < h, (A.[r] × U.[r]^T) j a) tC.
Proof.
  transitivity (∑ r < h, ⟨A.[r] × U.[r]^T, tC⟩); [apply sum_ext; intros r _; exact (dot_matmul_r A.[r] tC U.[r])|].
  cbn [dot]. rewrite sum_swap. apply sum_ext; intros j _. rewrite sum_swap. apply sum_ext; intros a _. now rewrite sum_r.
Qed.

Lemma unpacked_U {h n d_c d} (A : tensor [h; n; d]) (C : tensor [n; d_c]) (tU : tensor [h; d_c; d]) :
  ⟨A, unpacked C tU⟩ = dot (s := [h; d_c; d]) (fun r => C^T × A.[r]) tU.
Proof. apply sum_ext; intros r _. exact (dot_matmul_l A.[r] C tU.[r]). Qed.

Lemma unpacked_moves_C {h n d_c d} (c : R -> tensor [n; d_c]) (U : tensor [h; d_c; d]) t tC :
  moves c t tC -> moves (s := [h; n; d]) (fun u => unpacked (c u) U) t (unpacked tC U).
Proof.
  intros Hc r _ j Hj a Ha. apply (sum_derive d_c (fun k u => c u j k * U r k a)). intros k Hk.
  eapply derive_eq; [exact (derive_mult _ _ t _ _ (Hc j Hj k Hk) (derive_const _ t))|cbv beta; unfold part; ring].
Qed.

Lemma unpacked_moves_U {h n d_c d} (C : tensor [n; d_c]) (x : R -> tensor [h; d_c; d]) t tU :
  moves x t tU -> moves (s := [h; n; d]) (fun u => unpacked C (x u)) t (unpacked C tU).
Proof.
  intros Hx r Hr j Hj a Ha. apply (sum_derive d_c (fun k u => C j k * x u r k a)). intros k Hk.
  exact (derive_scale (C j k) _ t _ (Hx r Hr k Hk a Ha)).
Qed.

(** ** The chapter's theorems *)

(** The keys need never be built: with the queries Q U_Kᵀ, the latent itself is the one key and value head. The same
    scores, and the same outputs. *)
Theorem eq_var_mla_absorbed n_q n_k d_c d_k d_v (M : mask) scale (Q : tensor [n_q; d_k]) (C : tensor [n_k; d_c])
    (U_K : tensor [d_c; d_k]) (U_V : tensor [d_c; d_v]) (B : tensor [n_q; n_k]) :
  let Q' := Q × U_K^T in
  equal (Q × (C × U_K)^T) (Q' × C^T)
  /\ (forall P : tensor [n_q; n_k], equal (P × (C × U_V)) (P × C × U_V))
  /\ equal (attention M scale Q (C × U_K) (C × U_V) B) (attention M scale Q' C C B × U_V).
Proof.
  intro Q'.
  assert (HS : forall i j, (Q × (C × U_K)^T) i j = (Q' × C^T) i j).
  { intros i j. unfold Q', matmul, transpose.
    transitivity (∑ l < d_k, ∑ a < d_c, Q i l * U_K a l * C j a).
    - apply sum_ext; intros l _. rewrite sum_l. apply sum_ext; intros. ring.
    - rewrite sum_swap. apply sum_ext; intros. now rewrite sum_r. }
  assert (HO : forall P : tensor [n_q; n_k], equal (P × (C × U_V)) (P × C × U_V)).
  { intros P i Hi c Hc. symmetry. exact (matmul_assoc P C U_V i Hi c Hc). }
  split; [intros i _ j _; apply HS|split; [exact HO|]].
  unfold attention. replace (weights M scale Q (C × U_K) B) with (weights M scale Q' C B); [apply HO|].
  unfold weights. f_equal. unfold scores, scaled, add. do 2 (apply functional_extensionality; intro). now rewrite HS.
Qed.

(** The latent collects from the keys and the values of all heads, and each U from its own head's. For every loss of
    the keys and values, so for every head behind them. *)
Theorem eq_var_mla_vjp h n d_c d_k d_v (C : tensor [n; d_c]) (U_K : tensor [h; d_c; d_k]) (U_V : tensor [h; d_c; d_v])
    (ℓ : tensor [h; n; d_k] -> tensor [h; n; d_v] -> R) (dK : tensor [h; n; d_k]) (dV : tensor [h; n; d_v]) :
  let K (C : tensor [n; d_c]) (U_K : tensor [h; d_c; d_k]) : tensor [h; n; d_k] := fun r => C × U_K.[r] in
  let V (C : tensor [n; d_c]) (U_V : tensor [h; d_c; d_v]) : tensor [h; n; d_v] := fun r => C × U_V.[r] in
  gradient2 ℓ (K C U_K) (V C U_V) dK dV ->
  gradient (fun C => ℓ (K C U_K) (V C U_V)) C (fun j a => ∑ r < h, (dK.[r] × U_K.[r]^T ⊕ dV.[r] × U_V.[r]^T) j a)
  /\ gradient (fun U_K => ℓ (K C U_K) (V C U_V)) U_K (fun r => C^T × dK.[r])
  /\ gradient (fun U_V => ℓ (K C U_K) (V C U_V)) U_V (fun r => C^T × dV.[r]).
Proof.
  intros K V H. split; [|split]; intros x t tX Hx Ht.
  - eapply derive_eq; [apply (H (fun u => K (x u) U_K) (fun u => V (x u) U_V) t (unpacked tX U_K) (unpacked tX U_V));
      [now rewrite Hx|now rewrite Hx|exact (unpacked_moves_C x U_K t tX Ht)|exact (unpacked_moves_C x U_V t tX Ht)]|].
    rewrite !unpacked_C. cbn [dot]. rewrite <- sum_plus. apply sum_ext; intros j _. rewrite <- sum_plus. apply sum_ext; intros a _.
    unfold add. rewrite sum_plus. ring.
  - eapply derive_eq; [apply (H (fun u => K C (x u)) (fun _ => V C U_V) t (unpacked C tX) zero);
      [now rewrite Hx|reflexivity|exact (unpacked_moves_U C x t tX Ht)|apply moves_const]|].
    rewrite unpacked_U, dot_zero. ring.
  - eapply derive_eq; [apply (H (fun _ => K C U_K) (fun u => V C (x u)) t zero (unpacked C tX));
      [reflexivity|now rewrite Hx|apply moves_const|exact (unpacked_moves_U C x t tX Ht)]|].
    rewrite unpacked_U, dot_zero. ring.
Qed.

(** The two forms of a head give the latent and U_K the same gradients: absorbed, the latent gets dK̃ + dṼ, for it is
    key and value, and U_K gets dQ̃ᵀ Q. *)
Theorem absorbed_gradients n_q n_k d_c d_k d_v scale (dS P : tensor [n_q; n_k]) (Q : tensor [n_q; d_k]) (C : tensor [n_k; d_c])
    (U_K : tensor [d_c; d_k]) (U_V : tensor [d_c; d_v]) (dO : tensor [n_q; d_v]) :
  let dK : tensor [n_k; d_k] := scale • (dS^T × Q) in
  let dV : tensor [n_k; d_v] := P^T × dO in
  let Q' : tensor [n_q; d_c] := Q × U_K^T in
  let dO' : tensor [n_q; d_c] := dO × U_V^T in
  let dQ' : tensor [n_q; d_c] := scale • (dS × C) in
  let dK' : tensor [n_k; d_c] := scale • (dS^T × Q') in
  let dV' : tensor [n_k; d_c] := P^T × dO' in
  equal (dK' ⊕ dV') (dK × U_K^T ⊕ dV × U_V^T) /\ equal (dQ'^T × Q) (C^T × dK).
Proof.
  intros dK dV Q' dO' dQ' dK' dV'. split.
  - intros j Hj a Ha. unfold dK', dV', dK, dV, Q', dO', add. apply (f_equal2 Rplus).
    + transitivity (scale * (dS^T × Q × U_K^T) j a); [unfold scaled; f_equal; symmetry; exact (matmul_assoc dS^T Q U_K^T j Hj a Ha)|].
      unfold scaled, matmul at 1 3. rewrite sum_l. apply sum_ext; intros. ring.
    + symmetry. exact (matmul_assoc P^T dO U_V^T j Hj a Ha).
  - intros a _ l _. unfold dQ', dK, scaled, matmul, transpose. cbn [equal].
    transitivity (∑ i < n_q, ∑ j < n_k, scale * dS i j * C j a * Q i l).
    + apply sum_ext; intros i _. rewrite sum_l, sum_r. apply sum_ext; intros. ring.
    + rewrite sum_swap. apply sum_ext; intros j _. rewrite !sum_l. apply sum_ext; intros. ring.
Qed.
