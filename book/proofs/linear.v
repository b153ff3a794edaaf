(** * Linear attention (chapter 9)

    [Q] and [K] stand for the features Q' = φ(Q) and K' = φ(K). With a mask, query i reads the keys that it may see:
    all of them, or under the causal mask those up to its own. *)

From attnbook Require Export head.

(** x where b, else 0: the terms of a sum over some of the indices. *)
Definition when (b : bool) (x : R) : R := if b then x else 0.

(** What the keys have written the values into, as query i reads it; and the sum of those keys. *)
Definition memory {n_k d_k d_v} (M : mask) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) (i : nat) : tensor [d_k; d_v] :=
  fun a c => ∑ j < n_k, when (M i j) (K j a * V j c).
Definition key_sum {n_k d_k} (M : mask) (K : tensor [n_k; d_k]) (i : nat) : tensor [d_k] :=
  fun a => ∑ j < n_k, when (M i j) (K j a).

Definition numerator {n_q n_k d_k d_v} (M : mask) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
  : tensor [n_q; d_v] := fun i c => ∑ a < d_k, Q i a * memory M K V i a c.
Definition normalizer {n_q n_k d_k} (M : mask) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) : tensor [n_q] :=
  fun i => ∑ a < d_k, Q i a * key_sum M K i a.
Definition linear_attention {n_q n_k d_k d_v} (M : mask) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
  (V : tensor [n_k; d_v]) : tensor [n_q; d_v] := fun i c => numerator M Q K V i c / normalizer M Q K i.

(** The book's formula: all keys for all queries, by products in the cheap order. *)
Definition linear_all {n_q n_k d_k d_v} (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
  : tensor [n_q; d_v] := fun i c => (Q × (K^T × V)) i c / ∑ a < d_k, Q i a * colsum K a.

Lemma linear_everything {n_q n_k d_k d_v} (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) :
  linear_all Q K V = linear_attention everything Q K V.
Proof. reflexivity. Qed.

Lemma when_mult b x : when b x = (if b then 1 else 0) * x.
Proof. destruct b; simpl; ring. Qed.

Lemma when_derive b (f : R -> R) t a : is_derive f t a -> is_derive (fun u => when b (f u)) t (when b a).
Proof. intro H. destruct b; unfold when; [exact H|apply derive_const]. Qed.

(** ** A quotient of two arrays that move *)

Lemma quotient_moves {m n} (y : R -> tensor [m; n]) (z : R -> tensor [m]) t tY tZ :
  moves y t tY -> moves z t tZ ->
  (forall i, (i < m)%nat -> z t i <> 0 \/ (forall j, (j < n)%nat -> (forall u, y u i j = 0) /\ tY i j = 0) /\ tZ i = 0) ->
  moves (s := [m; n]) (fun u i j => y u i j / z u i) t (fun i j => (tY i j - y t i j / z t i * tZ i) / z t i).
Proof.
  intros HY HZ H i Hi j Hj. destruct (H i Hi) as [H0|[H0 H1]].
  - eapply derive_eq; [exact (derive_div (fun u => y u i j) (fun u => z u i) t _ _ (HY i Hi j Hj) (HZ i Hi) H0)|].
    cbv beta. field. exact H0.
  - destruct (H0 j Hj) as [H2 H3]. apply (is_derive_ext (fun _ => 0)); [intro u; rewrite H2; unfold Rdiv; symmetry; apply Rmult_0_l|].
    eapply derive_eq; [apply derive_const|]. cbv beta. rewrite H1, H3. unfold Rdiv. ring.
Qed.

Lemma quotient_adjoint {m n} (Z : tensor [m]) (O dO tY : tensor [m; n]) (tZ : tensor [m]) :
  dot (s := [m; n]) dO (fun i j => (tY i j - O i j * tZ i) / Z i)
  = dot (s := [m; n]) (fun i j => dO i j / Z i) tY + dot (s := [m]) (fun i => - (∑ j < n, dO i j * O i j) / Z i) tZ.
Proof.
  simpl. rewrite <- sum_plus. apply sum_ext; intros i _.
  transitivity (∑ j < n, (dO i j / Z i * tY i j - (tZ i / Z i) * (dO i j * O i j))); [apply sum_ext; intros; unfold Rdiv; ring|].
  rewrite sum_minus, <- sum_l. unfold Rdiv. ring.
Qed.

Lemma sum4 k l m n f :
  ∑ i < k, ∑ c < l, ∑ a < m, ∑ j < n, f i c a j = ∑ j < n, ∑ a < m, ∑ c < l, ∑ i < k, f i c a j.
Proof.
  transitivity (∑ i < k, ∑ c < l, ∑ j < n, ∑ a < m, f i c a j); [do 2 (apply sum_ext; intros); apply sum_swap|].
  transitivity (∑ i < k, ∑ j < n, ∑ c < l, ∑ a < m, f i c a j); [apply sum_ext; intros; apply sum_swap|].
  rewrite sum_swap. apply sum_ext; intros j _.
  transitivity (∑ i < k, ∑ a < m, ∑ c < l, f i c a j); [apply sum_ext; intros; apply sum_swap|].
  rewrite sum_swap. apply sum_ext; intros. apply sum_swap.
Qed.

Lemma sum3 k m n f : ∑ i < k, ∑ a < m, ∑ j < n, f i a j = ∑ j < n, ∑ a < m, ∑ i < k, f i a j.
Proof.
  transitivity (∑ i < k, ∑ j < n, ∑ a < m, f i a j); [apply sum_ext; intros; apply sum_swap|].
  rewrite sum_swap. apply sum_ext; intros. apply sum_swap.
Qed.

Section masked.
  Context {n_q n_k d_k d_v : nat} (M : mask) (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]).
  Context (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]).
  Let Z := normalizer M Q K.
  Let O := linear_attention M Q K V.
  Let dN : tensor [n_q; d_v] := fun i c => dO i c / Z i.
  Let dZ : tensor [n_q] := fun i => - (∑ c < d_v, dO i c * O i c) / Z i.
  Hypothesis HZ : forall i, (i < n_q)%nat -> live M n_k i -> Z i <> 0.
  Hypothesis Hℓ : gradient ℓ O dO.

  Lemma dead_row i : (forall j, (j < n_k)%nat -> M i j = false) ->
    (forall (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) c, numerator M Q K V i c = 0)
    /\ (forall (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]), normalizer M Q K i = 0).
  Proof.
    intro H. split; intros; apply sum_0; intros a _; unfold memory, key_sum; rewrite sum_0; try ring; intros j Hj; rewrite (H j Hj); reflexivity.
  Qed.

  Lemma linear_Q : gradient (fun Q => ℓ (linear_attention M Q K V)) Q
    (fun i a => (∑ c < d_v, dN i c * memory M K V i a c) + dZ i * key_sum M K i a).
  Proof.
    apply (backward (s := [n_q; d_k]) (r := [n_q; d_v]) (fun Q => linear_attention M Q K V) Q
      (fun tQ i c => (numerator M tQ K V i c - O i c * normalizer M tQ K i) / Z i) ℓ dO); [| |exact Hℓ].
    - intros x t tX Hx Ht. unfold O, Z, linear_attention. rewrite <- Hx.
      apply (quotient_moves (fun u => numerator M (x u) K V) (fun u => normalizer M (x u) K) t (numerator M tX K V) (normalizer M tX K)).
      + intros i Hi c Hc. apply (sum_derive d_k (fun a u => x u i a * memory M K V i a c)). intros a Ha.
        eapply derive_eq; [exact (derive_mult _ _ t _ _ (Ht i Hi a Ha) (derive_const _ t))|cbv beta; ring].
      + intros i Hi. apply (sum_derive d_k (fun a u => x u i a * key_sum M K i a)). intros a Ha.
        eapply derive_eq; [exact (derive_mult _ _ t _ _ (Ht i Hi a Ha) (derive_const _ t))|cbv beta; ring].
      + intros i Hi. destruct (live_or_dead M n_k i) as [L|D]; [left; rewrite Hx; exact (HZ i Hi L)|right].
        destruct (dead_row i D) as [D1 D2]. split; [intros; split; [intro|]; apply D1|apply D2].
    - intro tQ. unfold linear_attention in O. rewrite quotient_adjoint. fold dN dZ. unfold numerator, normalizer. simpl.
      rewrite <- sum_plus. apply sum_ext; intros i _.
      transitivity ((∑ a < d_k, ∑ c < d_v, dN i c * (tQ i a * memory M K V i a c)) + ∑ a < d_k, dZ i * (tQ i a * key_sum M K i a)).
      + rewrite sum_swap, sum_l. f_equal. apply sum_ext; intros. now rewrite sum_l.
      + rewrite <- sum_plus. apply sum_ext; intros a _. rewrite Rmult_plus_distr_r, sum_r. f_equal; [apply sum_ext; intros|]; ring.
  Qed.

  Let dH (j : nat) : tensor [d_k; d_v] := fun a c => ∑ i < n_q, when (M i j) (Q i a * dN i c).

  Lemma linear_K : gradient (fun K => ℓ (linear_attention M Q K V)) K
    (fun j a => (∑ c < d_v, V j c * dH j a c) + ∑ i < n_q, when (M i j) (dZ i * Q i a)).
  Proof.
    apply (backward (s := [n_k; d_k]) (r := [n_q; d_v]) (fun K => linear_attention M Q K V) K
      (fun tK i c => (numerator M Q tK V i c - O i c * normalizer M Q tK i) / Z i) ℓ dO); [| |exact Hℓ].
    - intros x t tX Hx Ht. unfold O, Z, linear_attention. rewrite <- Hx.
      apply (quotient_moves (fun u => numerator M Q (x u) V) (fun u => normalizer M Q (x u)) t (numerator M Q tX V) (normalizer M Q tX)).
      + intros i Hi c Hc. apply (sum_derive d_k (fun a u => Q i a * memory M (x u) V i a c)). intros a Ha.
        apply derive_scale. apply (sum_derive n_k (fun j u => when (M i j) (x u j a * V j c))). intros j Hj. apply when_derive.
        eapply derive_eq; [exact (derive_mult _ _ t _ _ (Ht j Hj a Ha) (derive_const _ t))|cbv beta; ring].
      + intros i Hi. apply (sum_derive d_k (fun a u => Q i a * key_sum M (x u) i a)). intros a Ha.
        apply derive_scale. apply (sum_derive n_k (fun j u => when (M i j) (x u j a))). intros j Hj. apply when_derive. exact (Ht j Hj a Ha).
      + intros i Hi. destruct (live_or_dead M n_k i) as [L|D]; [left; rewrite Hx; exact (HZ i Hi L)|right].
        destruct (dead_row i D) as [D1 D2]. split; [intros; split; [intro|]; apply D1|apply D2].
    - intro tK. unfold linear_attention in O. rewrite quotient_adjoint. fold dN dZ. unfold numerator, normalizer, memory, key_sum, dH. simpl.
      transitivity ((∑ j < n_k, ∑ a < d_k, ∑ c < d_v, ∑ i < n_q, dN i c * (Q i a * when (M i j) (tK j a * V j c)))
        + ∑ j < n_k, ∑ a < d_k, ∑ i < n_q, dZ i * (Q i a * when (M i j) (tK j a))).
      + f_equal; [rewrite <- sum4|rewrite <- sum3]; apply sum_ext; intros i _; [apply sum_ext; intros c _|]; rewrite sum_l;
          apply sum_ext; intros a _; now rewrite !sum_l.
      + rewrite <- sum_plus. apply sum_ext; intros j _. rewrite <- sum_plus. apply sum_ext; intros a _.
        rewrite Rmult_plus_distr_r, !sum_r. f_equal; apply sum_ext; intros; rewrite ?sum_l, ?sum_r; try (apply sum_ext; intros); rewrite !when_mult; ring.
  Qed.

  Lemma linear_V : gradient (fun V => ℓ (linear_attention M Q K V)) V (fun j c => ∑ a < d_k, K j a * dH j a c).
  Proof.
    apply (backward (s := [n_k; d_v]) (r := [n_q; d_v]) (fun V => linear_attention M Q K V) V
      (fun tV i c => (numerator M Q K tV i c - O i c * 0) / Z i) ℓ dO); [| |exact Hℓ].
    - intros x t tX Hx Ht. unfold O, Z, linear_attention. rewrite <- Hx.
      apply (quotient_moves (fun u => numerator M Q K (x u)) (fun u => normalizer M Q K) t (numerator M Q K tX) (fun _ => 0)).
      + intros i Hi c Hc. apply (sum_derive d_k (fun a u => Q i a * memory M K (x u) i a c)). intros a Ha.
        apply derive_scale. apply (sum_derive n_k (fun j u => when (M i j) (K j a * x u j c))). intros j Hj. apply when_derive.
        exact (derive_scale _ _ t _ (Ht j Hj c Hc)).
      + intros i Hi. apply derive_const.
      + intros i Hi. destruct (live_or_dead M n_k i) as [L|D]; [left; exact (HZ i Hi L)|right].
        destruct (dead_row i D) as [D1 D2]. split; [intros; split; [intro|]; apply D1|reflexivity].
    - intro tV. unfold linear_attention in O. rewrite (quotient_adjoint Z O dO _ (fun _ => 0)). fold dN dZ. unfold numerator, memory, dH. simpl.
      rewrite (sum_0 n_q (fun i => dZ i * 0)) by (intros; ring). rewrite Rplus_0_r.
      transitivity (∑ j < n_k, ∑ a < d_k, ∑ c < d_v, ∑ i < n_q, dN i c * (Q i a * when (M i j) (K j a * tV j c))).
      + rewrite <- sum4. apply sum_ext; intros i _; apply sum_ext; intros c _; rewrite sum_l; apply sum_ext; intros a _; now rewrite !sum_l.
      + apply sum_ext; intros j _. rewrite sum_swap. apply sum_ext; intros c _. rewrite sum_r. apply sum_ext; intros a _.
        rewrite sum_l, sum_r. apply sum_ext; intros i _. rewrite !when_mult. ring.
  Qed.
End masked.

(** A row of it is an average of values, with the weights Q'_i·K'_j / Z_i. *)
Lemma linear_rows {n_q n_k d_k d_v} (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v]) i c :
  linear_all Q K V i c = ∑ j < n_k, (Q × K^T) i j / (∑ a < d_k, Q i a * colsum K a) * V j c.
Proof.
  unfold linear_all. set (z := ∑ a < d_k, Q i a * colsum K a). unfold matmul, transpose.
  transitivity (/ z * ∑ j < n_k, ∑ a < d_k, Q i a * K j a * V j c).
  - unfold Rdiv. rewrite Rmult_comm. f_equal. rewrite sum_swap. apply sum_ext; intros a _. rewrite sum_l. apply sum_ext; intros. ring.
  - rewrite sum_l. apply sum_ext; intros j _. rewrite <- sum_r. unfold Rdiv. ring.
Qed.

Lemma normalizer_rows {n_q n_k d_k} (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) i :
  ∑ a < d_k, Q i a * colsum K a = ∑ j < n_k, (Q × K^T) i j.
Proof.
  unfold colsum, matmul, transpose. rewrite sum_swap. apply sum_ext; intros. now rewrite sum_l.
Qed.

(** ** The chapter's theorems *)

(** Linear attention backward, with Z the normalizer and D the row sums of dO ∘ O: a quotient, then products. Queries
    and keys have two paths each, through N and through Z. Z must not be 0, where there are keys. *)
Theorem eq_var_linear_vjp n_q n_k d_k d_v (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
    (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let Z : tensor [n_q] := fun i => ∑ a < d_k, Q i a * colsum K a in
  let O := linear_all Q K V in
  let D := rowsum (dO ∘ O) in
  let dN : tensor [n_q; d_v] := fun i c => dO i c / Z i in
  let dZ : tensor [n_q] := fun i => - D i / Z i in
  (forall i, (i < n_q)%nat -> Z i <> 0 \/ n_k = 0%nat) ->
  gradient ℓ O dO ->
  gradient (fun Q => ℓ (linear_all Q K V)) Q (dN × (K^T × V)^T ⊕ (fun i a => dZ i * colsum K a))
  /\ gradient (fun K => ℓ (linear_all Q K V)) K (V × (dN^T × Q) ⊕ (fun j a => ∑ i < n_q, dZ i * Q i a))
  /\ gradient (fun V => ℓ (linear_all Q K V)) V (K × (Q^T × dN)).
Proof.
  intros Z O D dN dZ HZ H.
  assert (HZ' : forall i, (i < n_q)%nat -> live everything n_k i -> normalizer everything Q K i <> 0).
  { intros i Hi [k [Hk _]]. destruct (HZ i Hi) as [Hne|E]; [exact Hne|lia]. }
  split; [|split].
  - exact (linear_Q everything Q K V ℓ dO HZ' H).
  - refine (gradient_ext _ _ _ _ _ (linear_K everything Q K V ℓ dO HZ' H)). intros j _ a _.
    unfold add, matmul, transpose. simpl. f_equal. apply sum_ext; intros c _. f_equal. apply sum_ext; intros i _.
    unfold dN, Z. change (normalizer everything Q K i) with (∑ a < d_k, Q i a * colsum K a). ring.
  - exact (linear_V everything Q K V ℓ dO HZ' H).
Qed.

(** Linear attention whose products are all positive is a softmax of the scores log(Q' K'ᵀ); so the formula of softmax
    gives the same gradient of Q. *)
Theorem eq_var_linear_long n_q n_k d_k d_v (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) (V : tensor [n_k; d_v])
    (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let A := Q × K^T in
  let Z : tensor [n_q] := fun i => ∑ a < d_k, Q i a * colsum K a in
  let O := linear_all Q K V in
  let P : tensor [n_q; n_k] := fun i j => A i j / Z i in
  let dP := dO × V^T in
  let D := rowsum (dO ∘ O) in
  let dS : tensor [n_q; n_k] := fun i j => P i j * (dP i j - D i) in
  (forall i j, (i < n_q)%nat -> (j < n_k)%nat -> 0 < A i j) ->
  gradient ℓ O dO ->
  equal P (softmax everything (fun i j => ln (A i j)))
  /\ equal O (P × V)
  /\ gradient (fun Q => ℓ (linear_all Q K V)) Q (fun i a => ∑ j < n_k, dS i j / A i j * K j a).
Proof.
  intros A Z O P dP D dS HA H.
  assert (HZ : forall i, (i < n_q)%nat -> (0 < n_k)%nat -> 0 < Z i).
  { intros i Hi Hk. unfold Z. rewrite normalizer_rows. apply (sum_pos n_k _ 0%nat Hk); [|now apply HA].
    intros k Hk'. apply Rlt_le. now apply HA. }
  split; [|split].
  - intros i Hi j Hj. simpl. unfold P, softmax.
    assert (HE : forall k, (k < n_k)%nat -> E (m := n_q) (n := n_k) everything (fun i j => ln (A i j)) i k = A i k)
      by (intros k Hk; apply exp_ln; now apply HA).
    rewrite HE by exact Hj. f_equal. unfold softmax.Z, Z. rewrite normalizer_rows. apply sum_ext; intros k Hk. symmetry. now apply HE.
  - intros i _ c _. exact (linear_rows Q K V i c).
  - refine (gradient_ext _ _ _ _ _ (proj1 (eq_var_linear_vjp n_q n_k d_k d_v Q K V ℓ dO _ H))).
    + intros i Hi a _. simpl. unfold add, matmul at 1. unfold transpose at 1.
      transitivity (∑ j < n_k, (dP i j - D i) / Z i * K j a).
      * transitivity (∑ j < n_k, (/ Z i * (dP i j * K j a) - D i / Z i * K j a)); [|apply sum_ext; intros; unfold Rdiv; ring].
        rewrite sum_minus, <- !sum_l. unfold Rminus. f_equal; [|unfold D, O, Z, colsum, Rdiv; ring].
        unfold dP, matmul, transpose.
        transitivity (/ Z i * ∑ c < d_v, ∑ j < n_k, dO i c * V j c * K j a).
        -- rewrite sum_l. apply sum_ext; intros c _. rewrite !sum_l. apply sum_ext; intros. unfold Z, Rdiv. ring.
        -- f_equal. rewrite sum_swap. apply sum_ext; intros j _. now rewrite sum_r.
      * apply sum_ext; intros j Hj. f_equal. unfold dS, P. pose proof (HA i j Hi Hj). pose proof (HZ i Hi ltac:(lia)). field. lra.
    + intros i Hi. destruct n_k as [|n]; [now right|left]. pose proof (HZ i Hi ltac:(lia)) as Hp. unfold Z in Hp. lra.
Qed.

(** Linear attention read causally, by sums that run over the tokens: forward from the first, backward from the last. *)
Theorem eq_var_linear_causal n d_k d_v (Q K : tensor [n; d_k]) (V : tensor [n; d_v]) (ℓ : tensor [n; d_v] -> R)
    (dO : tensor [n; d_v]) :
  let H i : tensor [d_k; d_v] := fun a c => ∑ j < n, when (j <=? i) (K j a * V j c) in
  let z i : tensor [d_k] := fun a => ∑ j < n, when (j <=? i) (K j a) in
  let Z : tensor [n] := fun i => ∑ a < d_k, Q i a * z i a in
  let O := linear_attention causal Q K V in
  let D := rowsum (dO ∘ O) in
  let dN : tensor [n; d_v] := fun i c => dO i c / Z i in
  let dZ : tensor [n] := fun i => - D i / Z i in
  let dH j : tensor [d_k; d_v] := fun a c => ∑ i < n, when (j <=? i) (Q i a * dN i c) in
  (forall i, (i < n)%nat -> Z i <> 0) ->
  gradient ℓ O dO ->
  (forall i c, O i c = (∑ a < d_k, Q i a * H i a c) / Z i)
  /\ gradient (fun Q => ℓ (linear_attention causal Q K V)) Q (fun i a => (∑ c < d_v, dN i c * H i a c) + dZ i * z i a)
  /\ gradient (fun K => ℓ (linear_attention causal Q K V)) K
       (fun j a => (∑ c < d_v, V j c * dH j a c) + ∑ i < n, when (j <=? i) (dZ i * Q i a))
  /\ gradient (fun V => ℓ (linear_attention causal Q K V)) V (fun j c => ∑ a < d_k, K j a * dH j a c).
Proof.
  intros H z Z O D dN dZ dH HZ Hℓ.
  assert (HZ' : forall i, (i < n)%nat -> live causal n i -> normalizer causal Q K i <> 0) by (intros i Hi _; exact (HZ i Hi)).
  split; [reflexivity|split; [|split]].
  - exact (linear_Q causal Q K V ℓ dO HZ' Hℓ).
  - exact (linear_K causal Q K V ℓ dO HZ' Hℓ).
  - exact (linear_V causal Q K V ℓ dO HZ' Hℓ).
Qed.
