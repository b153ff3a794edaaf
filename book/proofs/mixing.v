(** * Tables that are subtracted, mixed and shared (chapter 9)

    Differential attention, talking heads, and layers that read the keys and values of another one. All of it is linear
    in each of its inputs, so all of it goes back by the transpose. *)

From attnbook Require Export steps.

(** ** Differential attention *)

Definition difference {m n} (P1 : tensor [m; n]) (λ : R) (P2 : tensor [m; n]) : tensor [m; n] :=
  fun i j => P1 i j - λ * P2 i j.

(** Between the two tables, the values and λ: λ stands in dP2, in dV, and its own gradient is minus the inner product of
    P2 V and dO. *)
Theorem eq_var_differential n_q n_k d_v (P1 P2 : tensor [n_q; n_k]) λ (V : tensor [n_k; d_v])
    (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  gradient ℓ (difference P1 λ P2 × V) dO ->
  gradient (fun P1 => ℓ (difference P1 λ P2 × V)) P1 (dO × V^T) /\
  gradient (fun P2 => ℓ (difference P1 λ P2 × V)) P2 ((- λ) • (dO × V^T)) /\
  gradient (fun V => ℓ (difference P1 λ P2 × V)) V ((difference P1 λ P2)^T × dO) /\
  gradient (s := []) (fun λ => ℓ (difference P1 λ P2 × V)) λ (- ⟨P2 × V, dO⟩).
Proof.
  intro H. pose proof (product_l (difference P1 λ P2) V ℓ dO H) as HP. repeat apply conj.
  - refine (gradient_ext (s := [n_q; n_k]) _ _ (fun i j => 1 * (dO × V^T) i j) _ _ _); [intros i _ j _; simpl; ring|].
    refine (entrywise (fun i j x => x - λ * P2 i j) (fun _ _ => 1) P1 (fun P => ℓ (P × V)) (dO × V^T) _ HP).
    intros i j _ _. eapply derive_eq; [apply (derive_minus (fun x => x) (fun _ => λ * P2 i j)); [|apply derive_const]|].
    + apply is_derive_Reals, derivable_pt_lim_id.
    + ring.
  - refine (entrywise (fun i j x => P1 i j - λ * x) (fun _ _ => - λ) P2 (fun P => ℓ (P × V)) (dO × V^T) _ HP).
    intros i j _ _. eapply derive_eq; [apply (derive_minus (fun _ => P1 i j) (fun x => λ * x)); [apply derive_const|]|].
    + apply (derive_scale λ (fun x => x)). apply is_derive_Reals, derivable_pt_lim_id.
    + ring.
  - exact (product_r (difference P1 λ P2) V ℓ dO H).
  - refine (backward (s := []) (fun λ => difference P1 λ P2) λ (fun tλ => (- tλ) • P2) (fun P => ℓ (P × V))
      (dO × V^T) _ _ _ HP).
    + intros x t tX _ Ht i Hi j Hj. simpl in Ht. unfold difference, scaled.
      eapply derive_eq; [apply (derive_minus (fun _ => P1 i j) (fun u => x u * P2 i j)); [apply derive_const|]|].
      * apply (derive_mult x (fun _ => P2 i j)); [exact Ht|apply derive_const].
      * cbv beta. ring.
    + intro tλ. rewrite dot_scaled_r, <- dot_matmul_r, (dot_comm dO). simpl. ring.
Qed.

(** In the whole head: each table goes back as in plain attention, the second with −λ dO. *)
Theorem eq_var_differential__head n_q n_k d_k d_v (M : mask) scale λ (Q1 Q2 : tensor [n_q; d_k])
    (K1 K2 : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let P1 := weights M scale Q1 K1 B in
  let P2 := weights M scale Q2 K2 B in
  let dP1 := dO × V^T in
  let dP2 := (- λ) • (dO × V^T) in
  let dS1 := fun i j => P1 i j * (dP1 i j - ∑ k < n_k, P1 i k * dP1 i k) in
  let dS2 := fun i j => P2 i j * (dP2 i j - ∑ k < n_k, P2 i k * dP2 i k) in
  gradient ℓ (difference P1 λ P2 × V) dO ->
  gradient (fun Q1 => ℓ (difference (weights M scale Q1 K1 B) λ P2 × V)) Q1 (scale • (dS1 × K1)) /\
  gradient (fun K1 => ℓ (difference (weights M scale Q1 K1 B) λ P2 × V)) K1 (scale • (dS1^T × Q1)) /\
  gradient (fun Q2 => ℓ (difference P1 λ (weights M scale Q2 K2 B) × V)) Q2 (scale • (dS2 × K2)) /\
  gradient (fun K2 => ℓ (difference P1 λ (weights M scale Q2 K2 B) × V)) K2 (scale • (dS2^T × Q2)).
Proof.
  intros P1 P2 dP1 dP2 dS1 dS2 H. destruct (eq_var_differential n_q n_k d_v P1 P2 λ V ℓ dO H) as [H1 [H2 _]].
  pose proof (softmax_back M (scores scale Q1 K1 B) (fun P1 => ℓ (difference P1 λ P2 × V)) dP1 H1) as HS1.
  pose proof (softmax_back M (scores scale Q2 K2 B) (fun P2 => ℓ (difference P1 λ P2 × V)) dP2 H2) as HS2.
  repeat apply conj.
  - exact (scores_Q scale Q1 K1 B (fun S => ℓ (difference (softmax M S) λ P2 × V)) dS1 HS1).
  - exact (scores_K scale Q1 K1 B (fun S => ℓ (difference (softmax M S) λ P2 × V)) dS1 HS1).
  - exact (scores_Q scale Q2 K2 B (fun S => ℓ (difference P1 λ (softmax M S) × V)) dS2 HS2).
  - exact (scores_K scale Q2 K2 B (fun S => ℓ (difference P1 λ (softmax M S) × V)) dS2 HS2).
Qed.

(** Where every query has a key, dV sums to 1 − λ times what dO sums to. *)
Theorem eq_var_differential__sums n_q n_k d_v (M : mask) (S1 S2 : tensor [n_q; n_k]) λ (dO : tensor [n_q; d_v]) l :
  (forall i, (i < n_q)%nat -> live M n_k i) ->
  ∑ j < n_k, ((difference (softmax M S1) λ (softmax M S2))^T × dO) j l = (1 - λ) * ∑ i < n_q, dO i l.
Proof.
  intro H. unfold matmul, transpose. rewrite sum_swap, sum_l. apply sum_ext; intros i Hi.
  rewrite <- (sum_r (dO i l) n_k (fun j => difference (softmax M S1) λ (softmax M S2) i j)). f_equal.
  unfold difference. rewrite sum_minus, <- (sum_l λ n_k (fun j => softmax M S2 i j)), !softmax_sum by auto. ring.
Qed.

(** ** Talking heads *)

(** Heads mixed by a small matrix: W r g says how much of head r goes into head g. *)
Definition mix {h g m n} (W : tensor [h; g]) (X : tensor [h; m; n]) : tensor [g; m; n] :=
  fun b i j => ∑ r < h, W r b * X r i j.

Lemma mix_adjoint_X {h g m n} (W : tensor [h; g]) (X : tensor [h; m; n]) (dY : tensor [g; m; n]) :
  ⟨dY, mix W X⟩ = dot (s := [h; m; n]) (fun r i j => ∑ b < g, W r b * dY b i j) X.
Proof.
  simpl. unfold mix.
  transitivity (∑ b < g, ∑ i < m, ∑ r < h, ∑ j < n, W r b * dY b i j * X r i j).
  { apply sum_ext; intros b _. apply sum_ext; intros i _. rewrite sum_swap. apply sum_ext; intros j _. rewrite sum_l.
    apply sum_ext; intros. ring. }
  transitivity (∑ b < g, ∑ r < h, ∑ i < m, ∑ j < n, W r b * dY b i j * X r i j);
    [apply sum_ext; intros; apply sum_swap|].
  rewrite sum_swap. apply sum_ext; intros r _. rewrite sum_swap. apply sum_ext; intros i _. rewrite sum_swap.
  apply sum_ext; intros j _. now rewrite sum_r.
Qed.

Lemma mix_adjoint_W {h g m n} (W : tensor [h; g]) (X : tensor [h; m; n]) (dY : tensor [g; m; n]) :
  ⟨dY, mix W X⟩ = dot (s := [h; g]) (fun r b => ⟨X.[r], dY.[b]⟩) W.
Proof.
  rewrite mix_adjoint_X. simpl. apply sum_ext; intros r _.
  transitivity (∑ i < m, ∑ b < g, ∑ j < n, X r i j * dY b i j * W r b).
  { apply sum_ext; intros i _. rewrite sum_swap. apply sum_ext; intros j _. rewrite sum_r. apply sum_ext; intros.
    ring. }
  rewrite sum_swap. apply sum_ext; intros b _. rewrite sum_r. apply sum_ext; intros i _. now rewrite sum_r.
Qed.

Lemma mix_back {h g m n} (W : tensor [h; g]) (X : tensor [h; m; n]) (ℓ : tensor [g; m; n] -> R) dY :
  gradient ℓ (mix W X) dY ->
  gradient (s := [h; m; n]) (fun X => ℓ (mix W X)) X (fun r i j => ∑ b < g, W r b * dY b i j) /\
  gradient (s := [h; g]) (fun W => ℓ (mix W X)) W (fun r b => ⟨X.[r], dY.[b]⟩).
Proof.
  intro H. split.
  - refine (backward (fun X => mix W X) X (fun tX => mix W tX) ℓ dY _ _ _ H); [|intro tX; apply mix_adjoint_X].
    intros x t tX _ Ht b Hb i Hi j Hj. apply (sum_derive h (fun r u => W r b * x u r i j)). intros r Hr.
    apply (derive_scale (W r b) (fun u => x u r i j)). now apply Ht.
  - refine (backward (fun W => mix W X) W (fun tW => mix tW X) ℓ dY _ _ _ H); [|intro tW; apply mix_adjoint_W].
    intros x t tX _ Ht b Hb i Hi j Hj. apply (sum_derive h (fun r u => x u r b * X r i j)). intros r Hr.
    eapply derive_eq; [apply (derive_mult (fun u => x u r b) (fun _ => X r i j));
      [now apply Ht|apply derive_const]|cbv beta; ring].
Qed.

(** The steps of attention in a stack of heads, each for itself. *)

Lemma stack_softmax {h m n} (M : nat -> mask) (S : tensor [h; m; n]) (ℓ : tensor [h; m; n] -> R) dP :
  gradient ℓ (fun r => softmax (M r) S.[r]) dP ->
  gradient (s := [h; m; n]) (fun S => ℓ (fun r => softmax (M r) S.[r])) S
    (fun r => centered (softmax (M r) S.[r]) dP.[r]).
Proof.
  apply (backward (s := [h; m; n]) (r := [h; m; n]) (fun S r => softmax (M r) S.[r]) S
    (fun tS r => centered (softmax (M r) S.[r]) tS.[r])).
  - intros x t tX Hx Ht r Hr. rewrite <- Hx. exact (softmax_moves (M r) (fun u => (x u).[r]) t tX.[r] (Ht r Hr)).
  - intro tS. apply sum_ext; intros r _. apply centered_adjoint.
Qed.

Lemma stack_product {h m n p} (A : tensor [h; m; n]) (B : tensor [h; n; p]) (ℓ : tensor [h; m; p] -> R) dY :
  gradient ℓ (fun r => A.[r] × B.[r]) dY ->
  gradient (s := [h; m; n]) (fun A => ℓ (fun r => A.[r] × B.[r])) A (fun r => dY.[r] × B.[r]^T) /\
  gradient (s := [h; n; p]) (fun B => ℓ (fun r => A.[r] × B.[r])) B (fun r => A.[r]^T × dY.[r]).
Proof.
  intro H. split.
  - refine (backward (s := [h; m; n]) (r := [h; m; p]) (fun A r => A.[r] × B.[r]) A (fun tA r => tA.[r] × B.[r]) ℓ
      dY _ _ _ H).
    + intros x t tX _ Ht r Hr. exact (product_moves_l (fun u => (x u).[r]) B.[r] t tX.[r] (Ht r Hr)).
    + intro tA. apply sum_ext; intros r _. exact (dot_matmul_r dY.[r] tA.[r] B.[r]).
  - refine (backward (s := [h; n; p]) (r := [h; m; p]) (fun B r => A.[r] × B.[r]) B (fun tB r => A.[r] × tB.[r]) ℓ
      dY _ _ _ H).
    + intros x t tX _ Ht r Hr. exact (product_moves_r A.[r] (fun u => (x u).[r]) t tX.[r] (Ht r Hr)).
    + intro tB. apply sum_ext; intros r _. exact (dot_matmul_l dY.[r] A.[r] tB.[r]).
Qed.

Lemma stack_scores {h n_q n_k d_k} scale (Q : tensor [h; n_q; d_k]) (K : tensor [h; n_k; d_k])
    (ℓ : tensor [h; n_q; n_k] -> R) dS :
  gradient ℓ (fun r => scale • (Q.[r] × K.[r]^T)) dS ->
  gradient (s := [h; n_q; d_k]) (fun Q => ℓ (fun r => scale • (Q.[r] × K.[r]^T))) Q
    (fun r => scale • (dS.[r] × K.[r])) /\
  gradient (s := [h; n_k; d_k]) (fun K => ℓ (fun r => scale • (Q.[r] × K.[r]^T))) K
    (fun r => scale • (dS.[r]^T × Q.[r])).
Proof.
  intro H. split.
  - refine (backward (s := [h; n_q; d_k]) (r := [h; n_q; n_k]) (fun Q r => scale • (Q.[r] × K.[r]^T)) Q
      (fun tQ r => scale • (tQ.[r] × K.[r]^T)) ℓ dS _ _ _ H).
    + intros x t tX _ Ht r Hr. apply (scaled_moves scale (fun u => (x u).[r] × K.[r]^T)).
      exact (product_moves_l (fun u => (x u).[r]) (K.[r]^T) t tX.[r] (Ht r Hr)).
    + intro tQ. apply sum_ext; intros r _.
      change (⟨dS.[r], scale • (tQ.[r] × K.[r]^T)⟩ = ⟨scale • (dS.[r] × K.[r]), tQ.[r]⟩).
      rewrite dot_scaled_r, dot_scaled_l. f_equal. exact (dot_matmul_r dS.[r] tQ.[r] (K.[r]^T)).
  - refine (backward (s := [h; n_k; d_k]) (r := [h; n_q; n_k]) (fun K r => scale • (Q.[r] × K.[r]^T)) K
      (fun tK r => scale • (Q.[r] × tK.[r]^T)) ℓ dS _ _ _ H).
    + intros x t tX _ Ht r Hr. apply (scaled_moves scale (fun u => Q.[r] × (x u).[r]^T)).
      apply (product_moves_r Q.[r] (fun u => (x u).[r]^T)).
        exact (transpose_moves (fun u => (x u).[r]) t tX.[r] (Ht r Hr)).
    + intro tK. apply sum_ext; intros r _.
      change (⟨dS.[r], scale • (Q.[r] × tK.[r]^T)⟩ = ⟨scale • (dS.[r]^T × Q.[r]), tK.[r]⟩).
      rewrite dot_scaled_r, dot_scaled_l. f_equal. rewrite dot_matmul_l, dot_transpose.
      apply dot_ext; [|apply equal_refl]. intros j _ l _. simpl. unfold matmul, transpose. apply sum_ext; intros. ring.
Qed.

(** Attention of talking heads: h heads of scores are mixed into m heads of weights, these into g heads of outputs. *)
Definition talking {h m g n_q n_k d_k d_v} (M : nat -> mask) scale (Q : tensor [h; n_q; d_k]) (K : tensor [h; n_k; d_k])
  (V : tensor [g; n_k; d_v]) (W_S : tensor [h; m]) (W_P : tensor [m; g]) : tensor [g; n_q; d_v] :=
  let S : tensor [h; n_q; n_k] := fun r => scale • (Q.[r] × K.[r]^T) in
  let S' := mix W_S S in
  let P : tensor [m; n_q; n_k] := fun r => softmax (M r) S'.[r] in
  let P' := mix W_P P in
  fun r => P'.[r] × V.[r].

(** From dO back through both mixes: each takes its gradient back by its transpose, and each of its numbers gets the
    inner product of the two tables that it joins. The masks stand behind the first mix. *)
Theorem eq_var_talking h m g n_q n_k d_k d_v (M : nat -> mask) scale (Q : tensor [h; n_q; d_k])
    (K : tensor [h; n_k; d_k])
    (V : tensor [g; n_k; d_v]) (W_S : tensor [h; m]) (W_P : tensor [m; g]) (ℓ : tensor [g; n_q; d_v] -> R)
    (dO : tensor [g; n_q; d_v]) :
  let S : tensor [h; n_q; n_k] := fun r => scale • (Q.[r] × K.[r]^T) in
  let S' := mix W_S S in
  let P : tensor [m; n_q; n_k] := fun r => softmax (M r) S'.[r] in
  let P' := mix W_P P in
  let dP' : tensor [g; n_q; n_k] := fun r => dO.[r] × V.[r]^T in
  let dP : tensor [m; n_q; n_k] := fun r i j => ∑ b < g, W_P r b * dP' b i j in
  let dS' : tensor [m; n_q; n_k] := fun r i j => P r i j * (dP r i j - ∑ k < n_k, P r i k * dP r i k) in
  let dS : tensor [h; n_q; n_k] := fun r i j => ∑ b < m, W_S r b * dS' b i j in
  gradient ℓ (talking M scale Q K V W_S W_P) dO ->
  gradient (s := [m; g]) (fun W_P => ℓ (talking M scale Q K V W_S W_P)) W_P (fun r b => ⟨P.[r], dP'.[b]⟩) /\
  gradient (s := [h; m]) (fun W_S => ℓ (talking M scale Q K V W_S W_P)) W_S (fun r b => ⟨S.[r], dS'.[b]⟩) /\
  gradient (s := [h; n_q; d_k]) (fun Q => ℓ (talking M scale Q K V W_S W_P)) Q (fun r => scale • (dS.[r] × K.[r])) /\
  gradient (s := [h; n_k; d_k]) (fun K => ℓ (talking M scale Q K V W_S W_P)) K (fun r => scale • (dS.[r]^T × Q.[r])) /\
  gradient (s := [g; n_k; d_v]) (fun V => ℓ (talking M scale Q K V W_S W_P)) V (fun r => P'.[r]^T × dO.[r]).
Proof.
  intros S S' P P' dP' dP dS' dS H.
  destruct (stack_product P' V ℓ dO H) as [HP' HV].
  destruct (mix_back W_P P (fun P' => ℓ (fun r => P'.[r] × V.[r])) dP' HP') as [HP HWP].
  pose proof (stack_softmax M S' (fun P => ℓ (fun r => (mix W_P P).[r] × V.[r])) dP HP) as HS'.
  set (ℓS := fun X : tensor [m; n_q; n_k] => ℓ
    (fun r => (mix W_P ((fun r => softmax (M r) X.[r]) : tensor [m; n_q; n_k])).[r] × V.[r])).
  destruct (mix_back W_S S ℓS dS' HS') as [HS HWS].
  destruct (stack_scores scale Q K (fun S => ℓS (mix W_S S)) dS HS) as [HQ HK].
  exact (conj HWP (conj HWS (conj HQ (conj HK HV)))).
Qed.

(** The rows of the mixed dS still sum to 0. A head's D is no longer its dO · O, but over all heads the two sums
    agree. *)
Theorem eq_var_talking__rows h m g n_q n_k d_v (M : nat -> mask) (S' : tensor [m; n_q; n_k]) (V : tensor [g; n_k; d_v])
    (W_S : tensor [h; m]) (W_P : tensor [m; g]) (dO : tensor [g; n_q; d_v]) :
  let P : tensor [m; n_q; n_k] := fun r => softmax (M r) S'.[r] in
  let P' := mix W_P P in
  let dP' : tensor [g; n_q; n_k] := fun r => dO.[r] × V.[r]^T in
  let dP : tensor [m; n_q; n_k] := fun r i j => ∑ b < g, W_P r b * dP' b i j in
  let dS' : tensor [m; n_q; n_k] := fun r i j => P r i j * (dP r i j - ∑ k < n_k, P r i k * dP r i k) in
  let dS : tensor [h; n_q; n_k] := fun r i j => ∑ b < m, W_S r b * dS' b i j in
  (forall r i, ∑ j < n_k, dS r i j = 0) /\
  (forall i, ∑ r < m, ∑ k < n_k, P r i k * dP r i k = ∑ b < g, ∑ l < d_v, dO b i l * (P'.[b] × V.[b]) i l).
Proof.
  intros P P' dP' dP dS' dS. split.
  - intros r i. unfold dS. rewrite sum_swap. apply sum_0; intros b _.
    rewrite <- (sum_l (W_S r b) n_k (fun j => dS' b i j)).
    assert (H0 : ∑ j < n_k, dS' b i j = 0) by exact (centered_sums_to_0 (M b) S'.[b] dP.[b] i). rewrite H0. ring.
  - intro i. transitivity (∑ b < g, ∑ k < n_k, P' b i k * dP' b i k).
    + unfold P', dP, mix. symmetry.
      transitivity (∑ b < g, ∑ r < m, ∑ k < n_k, P r i k * (W_P r b * dP' b i k)).
      * apply sum_ext; intros b _. rewrite sum_swap. apply sum_ext; intros k _. rewrite sum_r. apply sum_ext; intros.
        ring.
      * rewrite sum_swap. apply sum_ext; intros r _. rewrite sum_swap. apply sum_ext; intros k _. now rewrite sum_l.
    + apply sum_ext; intros b _. exact (average_is_D P'.[b] V.[b] dO.[b] i).
Qed.

(** ** Layers that share keys and values *)

(** N layers read one K and one V, which another layer made from its input X. If the loss has the gradients dKa and
    dVa with respect to what each of them read, K and V get the sums, whatever the layers do, and X and the weights
    the products. *)
Theorem eq_var_layers N n_k d d_k d_v (X : tensor [n_k; d]) (W_K : tensor [d; d_k]) (W_V : tensor [d; d_v])
    (ℓ : tensor [N; n_k; d_k] -> tensor [N; n_k; d_v] -> R) (dKa : tensor [N; n_k; d_k]) (dVa : tensor [N; n_k; d_v]) :
  let dK : tensor [n_k; d_k] := fun j l => ∑ a < N, dKa a j l in
  let dV : tensor [n_k; d_v] := fun j l => ∑ a < N, dVa a j l in
  gradient2 ℓ (fun _ => X × W_K) (fun _ => X × W_V) dKa dVa ->
  gradient (fun K : tensor [n_k; d_k] => ℓ (fun _ => K) (fun _ => X × W_V)) (X × W_K) dK /\
  gradient (fun V : tensor [n_k; d_v] => ℓ (fun _ => X × W_K) (fun _ => V)) (X × W_V) dV /\
  gradient (fun W_K => ℓ (fun _ => X × W_K) (fun _ => X × W_V)) W_K (X^T × dK) /\
  gradient (fun W_V => ℓ (fun _ => X × W_K) (fun _ => X × W_V)) W_V (X^T × dV) /\
  gradient (fun X => ℓ (fun _ => X × W_K) (fun _ => X × W_V)) X (dK × W_K^T ⊕ dV × W_V^T).
Proof.
  intros dK dV H.
  assert (Hcopies : forall d (dA : tensor [N; n_k; d]) (tA : tensor [n_k; d]),
    dot (s := [N; n_k; d]) dA (fun _ => tA) = ⟨(fun j l => ∑ a < N, dA a j l) : tensor [n_k; d], tA⟩).
  { intros e dA tA. simpl. rewrite sum_swap. apply sum_ext; intros j _. rewrite sum_swap. apply sum_ext; intros.
    now rewrite sum_r. }
  assert (Hℓ : forall (k : R -> tensor [n_k; d_k]) (v : R -> tensor [n_k; d_v]) t tK tV, k t = X × W_K ->
    v t = X × W_V ->
    moves k t tK -> moves v t tV -> is_derive (fun u => ℓ (fun _ => k u) (fun _ => v u)) t (⟨dK, tK⟩ + ⟨dV, tV⟩)).
  { intros k v t tK tV Hk Hv HK HV. unfold dK, dV. rewrite <- !Hcopies.
    apply (H (fun u _ => k u) (fun u _ => v u));
      [now rewrite Hk|now rewrite Hv|intros a _; exact HK|intros a _; exact HV]. }
  repeat apply conj; intros x t tX Hx Ht.
  - eapply derive_eq; [exact (Hℓ x (fun _ => X × W_V) t tX zero Hx eq_refl Ht (moves_const _ _))|rewrite dot_zero;
      ring].
  - eapply derive_eq; [exact (Hℓ (fun _ => X × W_K) x t zero tX eq_refl Hx (moves_const _ _) Ht)|rewrite dot_zero;
      ring].
  - eapply derive_eq; [apply (Hℓ (fun u => X × x u) (fun _ => X × W_V) t (X × tX) zero); [now rewrite Hx|reflexivity|
      now apply product_moves_r|apply moves_const]|rewrite dot_zero, dot_matmul_l; ring].
  - eapply derive_eq; [apply (Hℓ (fun _ => X × W_K) (fun u => X × x u) t zero (X × tX)); [reflexivity|now rewrite Hx|
      apply moves_const|now apply product_moves_r]|rewrite dot_zero, dot_matmul_l; ring].
  - eapply derive_eq; [apply (Hℓ (fun u => x u × W_K) (fun u => x u × W_V) t (tX × W_K) (tX × W_V)); [now rewrite Hx|
      now rewrite Hx|now apply product_moves_l|now apply product_moves_l]|rewrite !dot_matmul_r, dot_add_l;
        reflexivity].
Qed.

(** The keys' gradients sum to 0 in each layer that reads them, and so in the total. *)
Theorem eq_var_layers__total N n_q n_k d_k scale (M : nat -> mask) (S dP : tensor [N; n_q; n_k])
    (Q : tensor [N; n_q; d_k]) l :
  let P : tensor [N; n_q; n_k] := fun a => softmax (M a) S.[a] in
  let dS : tensor [N; n_q; n_k] := fun a i j => P a i j * (dP a i j - ∑ k < n_k, P a i k * dP a i k) in
  let dK : tensor [n_k; d_k] := fun j l => ∑ a < N, (scale • (dS.[a]^T × Q.[a])) j l in
  ∑ j < n_k, dK j l = 0.
Proof.
  intros P dS dK. unfold dK. rewrite sum_swap. apply sum_0; intros a _. unfold scaled, matmul, transpose.
  rewrite <- (sum_l scale n_k (fun j => ∑ i < n_q, dS.[a] i j * Q.[a] i l)), sum_swap, sum_0; [ring|].
  intros i _. rewrite <- (sum_r (Q.[a] i l) n_k (fun j => dS.[a] i j)).
  assert (H0 : ∑ j < n_k, dS.[a] i j = 0) by exact (centered_sums_to_0 (M a) S.[a] dP.[a] i). rewrite H0. ring.
Qed.
