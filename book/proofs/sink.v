(** * A sink (chapter 9)

    One more score σ in each row, with no key. The sum under the fraction is never 0: no row is dead, even where every
    key is forbidden. In general what falls into the sink meets a value u of its own; the plain sink has none. *)

From Coq Require Import FunctionalExtensionality.
From attnbook Require Export steps.

Definition sink_weights {m n} (M : mask) (σ : R) (S : tensor [m; n]) : tensor [m; n] :=
  fun i j => E M S i j / (exp σ + Z M S i).
Definition sink_share {m n} (M : mask) (σ : R) (S : tensor [m; n]) : tensor [m] := fun i => exp σ / (exp σ + Z M S i).

Definition sink_attention {n_q n_k d_k d_v} (M : mask) (σ : R) scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
  (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) : tensor [n_q; d_v] := sink_weights M σ (scores scale Q K B) × V.

(** The output of a sink with the value u. *)
Definition sink_output {n_q n_k d_v} (M : mask) (σ : R) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v])
  (u : tensor [d_v])
  : tensor [n_q; d_v] := fun i l => (sink_weights M σ S × V) i l + sink_share M σ S i * u l.

Lemma sink_Z_pos {m n} M σ (S : tensor [m; n]) i : 0 < exp σ + Z M S i.
Proof. pose proof (exp_pos σ). pose proof (Z_nonneg M S i). lra. Qed.

(** ** A softmax with one key more *)

Definition longer {n_q n_k} (S : tensor [n_q; n_k]) (σ : R) : tensor [n_q; Datatypes.S n_k] :=
  fun i j => if j =? n_k then σ else S i j.
Definition longer_mask (n_k : nat) (M : mask) : mask := fun i j => if j =? n_k then true else M i j.

Lemma longer_E {n_q n_k} M (S : tensor [n_q; n_k]) σ i j :
  (j < n_k)%nat -> E (longer_mask n_k M) (longer S σ) i j = E M S i j.
Proof. intro H. unfold E, longer, longer_mask. destruct (Nat.eqb_spec j n_k); [lia|reflexivity]. Qed.

Lemma longer_E_last {n_q n_k} M (S : tensor [n_q; n_k]) σ i : E (longer_mask n_k M) (longer S σ) i n_k = exp σ.
Proof. unfold E, longer, longer_mask. now rewrite Nat.eqb_refl. Qed.

Lemma longer_Z {n_q n_k} M (S : tensor [n_q; n_k]) σ i : Z (longer_mask n_k M) (longer S σ) i = exp σ + Z M S i.
Proof.
  unfold Z. cbn [sum]. rewrite longer_E_last, Rplus_comm. f_equal. apply sum_ext; intros. now apply longer_E.
Qed.

(** A sink is the softmax of a row with one entry more, which no mask forbids. *)
Theorem sink_is_one_more_key n_q n_k (M : mask) σ (S : tensor [n_q; n_k]) i :
  (forall j, (j < n_k)%nat -> softmax (longer_mask n_k M) (longer S σ) i j = sink_weights M σ S i j) /\
  softmax (longer_mask n_k M) (longer S σ) i n_k = sink_share M σ S i.
Proof.
  unfold softmax, sink_weights, sink_share. rewrite longer_Z, longer_E_last. split; [|reflexivity].
  intros j Hj. now rewrite longer_E.
Qed.

(** A row whose keys are all forbidden gives its whole weight to the sink, and its output is 0 (with a value: u). *)
Theorem dead_row_beside_a_sink n_q n_k d_v (M : mask) σ (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) u i :
  (forall j, (j < n_k)%nat -> M i j = false) ->
  sink_share M σ S i = 1 /\ (forall l, (sink_weights M σ S × V) i l = 0) /\ (forall l, sink_output M σ S V u i l = u l).
Proof.
  intro H. assert (HZ : Z M S i = 0) by (apply sum_0; intros; apply E_forbidden; auto).
  assert (HO : forall l, (sink_weights M σ S × V) i l = 0).
  { intro l. apply sum_0; intros k Hk. unfold sink_weights. rewrite E_forbidden by auto. unfold Rdiv. ring. }
  assert (HP : sink_share M σ S i = 1) by (unfold sink_share; rewrite HZ; pose proof (exp_pos σ); field; lra).
  repeat split; [exact HP|exact HO|]. intro l. unfold sink_output. rewrite HO, HP. ring.
Qed.

(** L of the longer row has the sink's term in its sum; in a row whose keys are all forbidden it is σ. *)
Theorem logsumexp_beside_a_sink n_q n_k (M : mask) σ (S : tensor [n_q; n_k]) i :
  logsumexp (longer_mask n_k M) (longer S σ) i = ln (exp σ + Z M S i) /\
  ((forall j, (j < n_k)%nat -> M i j = false) -> logsumexp (longer_mask n_k M) (longer S σ) i = σ).
Proof.
  unfold logsumexp. rewrite longer_Z. split; [reflexivity|]. intro H.
  assert (HZ : Z M S i = 0) by (apply sum_0; intros; apply E_forbidden; auto). rewrite HZ, Rplus_0_r. apply ln_exp.
Qed.

(** ** How they move *)

Section moving.
  Context {m n : nat} (M : mask) (σ : R -> R) (s : R -> tensor [m; n]) (t tσ : R) (tS : tensor [m; n]).
  Hypothesis (Hσ : is_derive σ t tσ) (Hs : moves s t tS).
  Let P := sink_weights M (σ t) (s t).
  Let Pσ := sink_share M (σ t) (s t).
  Let a : tensor [m] := fun i => ∑ k < n, P i k * tS i k + Pσ i * tσ.

  Lemma sink_Z_derive i : (i < m)%nat ->
    is_derive (fun u => exp (σ u) + Z M (s u) i) t (exp (σ t) * tσ + ∑ k < n, E M (s t) i k * tS i k).
  Proof.
    intro Hi. apply (derive_plus (fun u => exp (σ u)) (fun u => Z M (s u) i));
      [now apply derive_exp|now apply Z_derive].
  Qed.

  Lemma sink_average i : a i = (exp (σ t) * tσ + ∑ k < n, E M (s t) i k * tS i k) / (exp (σ t) + Z M (s t) i).
  Proof.
    unfold a, P, Pσ, sink_weights, sink_share. pose proof (sink_Z_pos M (σ t) (s t) i).
    replace (∑ k < n, E M (s t) i k / (exp (σ t) + Z M (s t) i) * tS i k)
      with ((∑ k < n, E M (s t) i k * tS i k) / (exp (σ t) + Z M (s t) i)); [field; lra|].
    rewrite sum_div. apply sum_ext; intros. field; lra.
  Qed.

  Lemma sink_weights_moves : moves (s := [m; n]) (fun u => sink_weights M (σ u) (s u)) t
      (fun i j => P i j * (tS i j - a i)).
  Proof.
    intros i Hi j Hj. pose proof (sink_Z_pos M (σ t) (s t) i). eapply derive_eq.
    - apply (derive_div (fun u => E M (s u) i j) (fun u => exp (σ u) + Z M (s u) i));
        [exact (E_derive M s t tS i j Hs Hi Hj)|exact (sink_Z_derive i Hi)|lra].
    - cbv beta. rewrite sink_average. unfold P, sink_weights. field. lra.
  Qed.

  Lemma sink_share_moves : moves (s := [m]) (fun u => sink_share M (σ u) (s u)) t (fun i => Pσ i * (tσ - a i)).
  Proof.
    intros i Hi. pose proof (sink_Z_pos M (σ t) (s t) i). eapply derive_eq.
    - apply (derive_div (fun u => exp (σ u)) (fun u => exp (σ u) + Z M (s u) i));
        [exact (derive_exp σ t tσ Hσ)|exact (sink_Z_derive i Hi)|lra].
    - cbv beta. rewrite sink_average. unfold Pσ, sink_share. field. lra.
  Qed.
End moving.

(** The adjoint, of one row. *)
Lemma sink_row n (P dP tS : nat -> R) (Pσ dPσ tσ : R) :
  let a := ∑ k < n, P k * tS k + Pσ * tσ in
  let D := ∑ k < n, P k * dP k + Pσ * dPσ in
  ∑ j < n, dP j * (P j * (tS j - a)) + dPσ * (Pσ * (tσ - a)) =
  ∑ j < n, P j * (dP j - D) * tS j + Pσ * (dPσ - D) * tσ.
Proof.
  intros a D.
  transitivity (∑ j < n, (dP j * P j * tS j - a * (P j * dP j)) + dPσ * (Pσ * (tσ - a)));
    [f_equal; apply sum_ext; intros; ring|].
  transitivity (∑ j < n, (dP j * P j * tS j - D * (P j * tS j)) + Pσ * (dPσ - D) * tσ);
    [|f_equal; apply sum_ext; intros; ring].
  rewrite !sum_minus, <- !sum_l. unfold a, D. ring.
Qed.

Section one_input.
  Context {n_q n_k d_v : nat} (M : mask) (σ : R) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) (u : tensor [d_v]).
  Context (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]).
  Hypothesis Hℓ : gradient ℓ (sink_output M σ S V u) dO.
  Let P := sink_weights M σ S.
  Let Pσ := sink_share M σ S.
  Let dP := dO × V^T.
  Let dPσ i := ∑ l < d_v, dO i l * u l.
  Let D i := ∑ k < n_k, P i k * dP i k + Pσ i * dPσ i.

  Lemma sink_derive (σ' : R -> R) (s : R -> tensor [n_q; n_k]) (v : R -> tensor [n_k; d_v]) (w : R -> tensor [d_v])
      (t tσ : R) tS tV tu :
    is_derive σ' t tσ -> moves s t tS -> moves v t tV -> moves w t tu -> σ' t = σ -> s t = S -> v t = V -> w t = u ->
    is_derive (fun x => ℓ (sink_output M (σ' x) (s x) (v x) (w x))) t
      ((∑ i < n_q, Pσ i * (dPσ i - D i)) * tσ + ⟨(fun i j => P i j * (dP i j - D i)) : tensor [n_q; n_k], tS⟩ +
       ⟨P^T × dO, tV⟩ + ⟨(fun l => ∑ i < n_q, Pσ i * dO i l) : tensor [d_v], tu⟩).
  Proof.
    intros Hσ HS HV Hu Eσ ES EV Eu.
    set (a := fun i => ∑ k < n_k, P i k * tS i k + Pσ i * tσ).
    set (tP := (fun i j => P i j * (tS i j - a i)) : tensor [n_q; n_k]).
    set (tPσ := fun i => Pσ i * (tσ - a i)).
    set (tO := (tP × V ⊕ P × tV) ⊕ ((fun i l => tPσ i * u l + Pσ i * tu l) : tensor [n_q; d_v])).
    assert (Ht : moves (s := [n_q; d_v]) (fun x => sink_output M (σ' x) (s x) (v x) (w x)) t tO).
    { intros i Hi l Hl. unfold sink_output.
      apply (derive_plus (fun x => (sink_weights M (σ' x) (s x) × v x) i l)
        (fun x => sink_share M (σ' x) (s x) i * w x l)).
      - pose proof (matmul_moves (fun x => sink_weights M (σ' x) (s x)) v t _ _
          (sink_weights_moves M σ' s t tσ tS Hσ HS) HV i Hi l Hl) as H.
        cbv beta in H. rewrite Eσ, ES, EV in H. exact H.
      - pose proof (sink_share_moves M σ' s t tσ tS Hσ HS i Hi) as H. cbv beta in H. rewrite Eσ, ES in H.
        eapply derive_eq; [apply (derive_mult (fun x => sink_share M (σ' x) (s x) i) (fun x => w x l));
          [exact H|now apply Hu]|].
        cbv beta. rewrite Eσ, ES, Eu. reflexivity. }
    eapply derive_eq.
    - apply (Hℓ (fun x => sink_output M (σ' x) (s x) (v x) (w x)) t tO); [now rewrite Eσ, ES, EV, Eu|exact Ht].
    - unfold tO. rewrite !dot_add_r, dot_matmul_r, dot_matmul_l. fold dP.
      assert (H1 : ⟨dP, tP⟩ + ⟨dO, (fun i l => tPσ i * u l + Pσ i * tu l) : tensor [n_q; d_v]⟩ =
        (∑ i < n_q, Pσ i * (dPσ i - D i)) * tσ + ⟨(fun i j => P i j * (dP i j - D i)) : tensor [n_q; n_k], tS⟩ +
        ⟨(fun l => ∑ i < n_q, Pσ i * dO i l) : tensor [d_v], tu⟩); [|lra].
      simpl.
      transitivity (∑ i < n_q, (∑ j < n_k, dP i j * tP i j + dPσ i * tPσ i) + ∑ i < n_q, ∑ l < d_v, Pσ i * dO i l
        * tu l).
      + rewrite sum_plus, Rplus_assoc. f_equal. rewrite <- sum_plus. apply sum_ext; intros i _.
        unfold dPσ. rewrite sum_r, <- sum_plus. apply sum_ext; intros. ring.
      + rewrite (sum_swap n_q d_v), sum_r, <- sum_plus. f_equal.
        * apply sum_ext; intros i _. unfold tP, tPσ, a. rewrite (sink_row n_k (P i) (dP i) (tS i) (Pσ i) (dPσ i) tσ).
          fold (D i). ring.
        * apply sum_ext; intros. now rewrite sum_r.
  Qed.

  Lemma sink_σ : gradient (s := []) (fun σ => ℓ (sink_output M σ S V u)) σ (∑ i < n_q, Pσ i * (dPσ i - D i)).
  Proof.
    intros x t tX Hx Ht. eapply derive_eq.
    - exact (sink_derive x (fun _ => S) (fun _ => V) (fun _ => u) t tX zero zero zero Ht (moves_const _ _)
        (moves_const _ _)
        (moves_const _ _) Hx eq_refl eq_refl eq_refl).
    - rewrite !dot_zero. simpl. ring.
  Qed.

  Lemma sink_S : gradient (fun S => ℓ (sink_output M σ S V u)) S (fun i j => P i j * (dP i j - D i)).
  Proof.
    intros x t tX Hx Ht. eapply derive_eq.
    - exact (sink_derive (fun _ => σ) x (fun _ => V) (fun _ => u) t 0 tX zero zero (derive_const _ _) Ht
        (moves_const _ _)
        (moves_const _ _) eq_refl Hx eq_refl eq_refl).
    - rewrite !dot_zero. ring.
  Qed.

  Lemma sink_V : gradient (fun V => ℓ (sink_output M σ S V u)) V (P^T × dO).
  Proof.
    intros x t tX Hx Ht. eapply derive_eq.
    - exact (sink_derive (fun _ => σ) (fun _ => S) x (fun _ => u) t 0 zero tX zero (derive_const _ _)
        (moves_const _ _) Ht
        (moves_const _ _) eq_refl eq_refl Hx eq_refl).
    - rewrite !dot_zero. ring.
  Qed.

  Lemma sink_u : gradient (fun u => ℓ (sink_output M σ S V u)) u (fun l => ∑ i < n_q, Pσ i * dO i l).
  Proof.
    intros x t tX Hx Ht. eapply derive_eq.
    - exact (sink_derive (fun _ => σ) (fun _ => S) (fun _ => V) x t 0 zero zero tX (derive_const _ _) (moves_const _ _)
        (moves_const _ _) Ht eq_refl eq_refl eq_refl Hx).
    - rewrite !dot_zero. ring.
  Qed.
End one_input.

(** ** The sink without a value *)

Lemma plain_sink {n_q n_k d_v} M σ (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]) :
  sink_output M σ S V (fun _ => 0) = sink_weights M σ S × V.
Proof.
  apply functional_extensionality; intro i. apply functional_extensionality; intro l. unfold sink_output. ring.
Qed.

Section plain.
  Context {n_q n_k d_v : nat} (M : mask) (σ : R) (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v]).
  Context (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]).
  Hypothesis Hℓ : gradient ℓ (sink_weights M σ S × V) dO.
  Let P := sink_weights M σ S.
  Let D i := ∑ l < d_v, dO i l * (P × V) i l.

  Lemma plain_D i : ∑ k < n_k, P i k * (dO × V^T) i k + sink_share M σ S i * (∑ l < d_v, dO i l * 0) = D i.
  Proof. rewrite average_is_D, (sum_0 d_v (fun l => dO i l * 0)) by (intros; ring). unfold D. ring. Qed.

  Lemma plain_ℓ : gradient ℓ (sink_output M σ S V (fun _ => 0)) dO.
  Proof. rewrite plain_sink. exact Hℓ. Qed.

  Lemma plain_S : gradient (fun S => ℓ (sink_weights M σ S × V)) S (fun i j => P i j * ((dO × V^T) i j - D i)).
  Proof.
    apply (gradient_same (fun S => ℓ (sink_output M σ S V (fun _ => 0)))); [intro; now rewrite plain_sink|].
    refine (gradient_ext _ _ _ _ _ (sink_S M σ S V (fun _ => 0) ℓ dO plain_ℓ)).
    intros i _ j _. simpl. fold P. now rewrite plain_D.
  Qed.

  Lemma plain_σ : gradient (s := []) (fun σ => ℓ (sink_weights M σ S × V)) σ (- ∑ i < n_q, sink_share M σ S i * D i).
  Proof.
    apply (gradient_same (s := []) (fun σ => ℓ (sink_output M σ S V (fun _ => 0)))); [intro; now rewrite plain_sink|].
    refine (gradient_ext (s := []) _ _ _ _ _ (sink_σ M σ S V (fun _ => 0) ℓ dO plain_ℓ)).
    simpl. rewrite <- sum_opp. apply sum_ext; intros i _. fold P. rewrite plain_D.
    rewrite (sum_0 d_v (fun l => dO i l * 0)) by (intros; ring). ring.
  Qed.
End plain.

(** ** The chapter's theorems *)

(** In the whole head, from dO back and beside every mask: dS = P (dP − D) with D = dO · O, and the sink itself gets
    minus the sum of its shares times D. *)
Theorem eq_var_sink_vjp n_q n_k d_k d_v (M : mask) σ scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let S := scores scale Q K B in
  let P := fun i j => E M S i j / (exp σ + Z M S i) in
  let Pσ := fun i => exp σ / (exp σ + Z M S i) in
  let O := P × V in
  let dP := dO × V^T in
  let D := fun i => ∑ l < d_v, dO i l * O i l in
  let dS := fun i j => P i j * (dP i j - D i) in
  gradient ℓ O dO ->
  gradient (s := []) (fun σ => ℓ (sink_attention M σ scale Q K V B)) σ (- ∑ i < n_q, Pσ i * D i) /\
  gradient (fun Q => ℓ (sink_attention M σ scale Q K V B)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (sink_attention M σ scale Q K V B)) K (scale • (dS^T × Q)) /\
  gradient (fun V => ℓ (sink_attention M σ scale Q K V B)) V (P^T × dO) /\
  gradient (fun B => ℓ (sink_attention M σ scale Q K V B)) B dS.
Proof.
  intros S P Pσ O dP D dS H. pose proof (plain_S M σ S V ℓ dO H) as HS. unfold sink_attention. repeat apply conj.
  - exact (plain_σ M σ S V ℓ dO H).
  - exact (scores_Q scale Q K B (fun S => ℓ (sink_weights M σ S × V)) dS HS).
  - exact (scores_K scale Q K B (fun S => ℓ (sink_weights M σ S × V)) dS HS).
  - exact (product_r P V ℓ dO H).
  - exact (scores_B scale Q K B (fun S => ℓ (sink_weights M σ S × V)) dS HS).
Qed.

(** One sink serves a whole batch: it gets the sum over the samples, too. *)
Theorem eq_var_sink_vjp__batch b n_q n_k d_v (M : nat -> mask) σ (S : tensor [b; n_q; n_k]) (V : tensor [b; n_k; d_v])
    (ℓ : tensor [b; n_q; d_v] -> R) (dO : tensor [b; n_q; d_v]) :
  let P := fun c => sink_weights (M c) σ S.[c] in
  let Pσ := fun c => sink_share (M c) σ S.[c] in
  let D := fun c i => ∑ l < d_v, dO c i l * (P c × V.[c]) i l in
  gradient ℓ (fun c => sink_weights (M c) σ S.[c] × V.[c]) dO ->
  gradient (s := []) (fun σ => ℓ (fun c => sink_weights (M c) σ S.[c] × V.[c])) σ
    (- ∑ c < b, ∑ i < n_q, Pσ c i * D c i).
Proof.
  intros P Pσ D.
  set (tP := fun (tσ : R) c => (fun i j => P c i j * (0 - (∑ k < n_k, P c i k * 0 + Pσ c i * tσ))) : tensor [n_q; n_k]).
  apply (backward (s := []) (r := [b; n_q; d_v]) (fun σ c => sink_weights (M c) σ S.[c] × V.[c]) σ
    (fun tσ c => tP tσ c × V.[c]) ℓ dO).
  - intros x t tX Hx Ht c Hc. simpl in Ht.
    apply (product_moves_l (fun u => sink_weights (M c) (x u) S.[c]) V.[c]). unfold tP, P, Pσ. rewrite <- Hx.
    exact (sink_weights_moves (M c) x (fun _ => S.[c]) t tX (fun _ _ => 0) Ht (moves_const _ _)).
  - intro tσ. simpl. rewrite <- sum_opp, sum_r. apply sum_ext; intros c _.
    change (⟨dO.[c], tP tσ c × V.[c]⟩ = - (∑ i < n_q, Pσ c i * D c i) * tσ).
    rewrite dot_matmul_r. simpl. rewrite <- sum_opp, sum_r. apply sum_ext; intros i _.
    pose proof (sink_row n_k (P c i) ((dO.[c] × V.[c]^T) i) (fun _ => 0) (Pσ c i) 0 tσ) as H. cbv zeta in H.
    eapply eq_trans; [|eapply eq_trans; [exact H|]].
    + unfold tP. rewrite Rmult_0_l, Rplus_0_r. reflexivity.
    + rewrite (average_is_D (P c) V.[c] dO.[c] i : _ = D c i).
      match goal with |- ?a + _ = _ => assert (Ha : a = 0) by (apply sum_0; intros; ring); rewrite Ha end. ring.
Qed.

(** The keys of a row have the weight 1 − P_σ, and their dS sums to P_σ D. *)
Theorem eq_var_sink_rows n_q n_k (M : mask) σ (S dP : tensor [n_q; n_k]) i :
  let P := fun i j => E M S i j / (exp σ + Z M S i) in
  let Pσ := fun i => exp σ / (exp σ + Z M S i) in
  let D := fun i => ∑ k < n_k, P i k * dP i k in
  let dS := fun i j => P i j * (dP i j - D i) in
  ∑ j < n_k, P i j = 1 - Pσ i /\ ∑ j < n_k, dS i j = Pσ i * D i.
Proof.
  intros P Pσ D dS.
  assert (H : ∑ j < n_k, P i j = 1 - Pσ i).
  { unfold P, Pσ. rewrite <- sum_div. pose proof (sink_Z_pos M σ S i).
    change (Z M S i / (exp σ + Z M S i) = 1 - exp σ / (exp σ + Z M S i)). field. lra. }
  split; [exact H|]. unfold dS.
  transitivity (∑ j < n_k, (P i j * dP i j - D i * P i j)); [apply sum_ext; intros; ring|].
  rewrite sum_minus, <- (sum_l (D i) n_k (fun j => P i j)), H. unfold D. ring.
Qed.

(** A sink with a value u, from dO back. The value gets its shares of dO; what falls into the sink joins the
    average D. *)
Theorem eq_var_sink_value n_q n_k d_k d_v (M : mask) σ scale (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (u : tensor [d_v]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let S := scores scale Q K B in
  let P := sink_weights M σ S in
  let Pσ := sink_share M σ S in
  let dP := dO × V^T in
  let D := fun i => ∑ k < n_k, P i k * dP i k + Pσ i * (∑ l < d_v, dO i l * u l) in
  let dS := fun i j => P i j * (dP i j - D i) in
  gradient ℓ (fun i l => ∑ j < n_k, P i j * V j l + Pσ i * u l) dO ->
  gradient (fun u => ℓ (sink_output M σ S V u)) u (fun l => ∑ i < n_q, Pσ i * dO i l) /\
  gradient (s := []) (fun σ => ℓ (sink_output M σ S V u)) σ (∑ i < n_q, Pσ i * ((∑ l < d_v, dO i l * u l) - D i)) /\
  gradient (fun V => ℓ (sink_output M σ S V u)) V (P^T × dO) /\
  gradient (fun Q => ℓ (sink_output M σ (scores scale Q K B) V u)) Q (scale • (dS × K)) /\
  gradient (fun K => ℓ (sink_output M σ (scores scale Q K B) V u)) K (scale • (dS^T × Q)) /\
  gradient (fun B => ℓ (sink_output M σ (scores scale Q K B) V u)) B dS.
Proof.
  intros S P Pσ dP D dS H. change (gradient ℓ (sink_output M σ S V u) dO) in H.
  pose proof (sink_S M σ S V u ℓ dO H) as HS. repeat apply conj.
  - exact (sink_u M σ S V u ℓ dO H).
  - exact (sink_σ M σ S V u ℓ dO H).
  - exact (sink_V M σ S V u ℓ dO H).
  - exact (scores_Q scale Q K B (fun S => ℓ (sink_output M σ S V u)) dS HS).
  - exact (scores_K scale Q K B (fun S => ℓ (sink_output M σ S V u)) dS HS).
  - exact (scores_B scale Q K B (fun S => ℓ (sink_output M σ S V u)) dS HS).
Qed.

(** Beside a sink with a value, D is again dO · O, the keys' dS sums to minus what the sink gets, and the gradients of
    the values together with that of u sum to those of the outputs. *)
Theorem eq_var_sink_value__rows n_q n_k d_v (M : mask) σ (S : tensor [n_q; n_k]) (V : tensor [n_k; d_v])
    (u : tensor [d_v])
    (dO : tensor [n_q; d_v]) :
  let P := sink_weights M σ S in
  let Pσ := sink_share M σ S in
  let O := fun i l => ∑ j < n_k, P i j * V j l + Pσ i * u l in
  let dP := dO × V^T in
  let dPσ := fun i => ∑ l < d_v, dO i l * u l in
  let D := fun i => ∑ k < n_k, P i k * dP i k + Pσ i * dPσ i in
  let dS := fun i j => P i j * (dP i j - D i) in
  (forall i, D i = ∑ l < d_v, dO i l * O i l) /\
  (forall i, ∑ j < n_k, dS i j = - Pσ i * (dPσ i - D i)) /\
  (forall l, ∑ j < n_k, (P^T × dO) j l + ∑ i < n_q, Pσ i * dO i l = ∑ i < n_q, dO i l).
Proof.
  intros P Pσ O dP dPσ D dS.
  assert (HP : forall i, ∑ j < n_k, P i j = 1 - Pσ i) by (intro i; exact (proj1 (eq_var_sink_rows n_q n_k M σ S dP i))).
  repeat apply conj.
  - intro i. unfold D. rewrite (average_is_D P V dO i : ∑ k < n_k, P i k * dP i k = _). unfold dPσ.
    rewrite sum_l, <- sum_plus.
    apply sum_ext; intros l _. unfold O, matmul. ring.
  - intro i. unfold dS. transitivity (∑ j < n_k, (P i j * dP i j - D i * P i j)); [apply sum_ext; intros; ring|].
    rewrite sum_minus, <- (sum_l (D i) n_k (fun j => P i j)), HP. unfold D. ring.
  - intro l. unfold matmul, transpose. rewrite sum_swap, <- sum_plus. apply sum_ext; intros i _.
    rewrite <- (sum_r (dO i l) n_k (fun j => P i j)), HP. ring.
Qed.
