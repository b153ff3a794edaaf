(** * Decay and the delta rule (chapter 9)

    A state of d_k × d_v numbers that each of n tokens fades, by γ_i, and writes into. Tokens are counted from 0:
    [state i] is what token i finds, [state (S i)] what it leaves. *)

From attnbook Require Export linear.

(** What a token writes under its key: its value, or with the delta rule β times what is missing there. *)
Definition written {d_k d_v} (delta : bool) (k : tensor [d_k]) (v : tensor [d_v]) (β γ : R) (H : tensor [d_k; d_v])
  : tensor [d_v] := fun c => if delta then β * (v c - γ * ∑ b < d_k, k b * H b c) else v c.

Definition step {d_k d_v} (delta : bool) (k : tensor [d_k]) (v : tensor [d_v]) (β γ : R) (H : tensor [d_k; d_v])
  : tensor [d_k; d_v] := fun a c => γ * H a c + k a * written delta k v β γ H c.

Fixpoint state {d_k d_v} (delta : bool) (K : nat -> tensor [d_k]) (V : nat -> tensor [d_v]) (β γ : nat -> R)
  (H_0 : tensor [d_k; d_v]) (i : nat) : tensor [d_k; d_v] :=
  match i with
  | O => H_0
  | S i => step delta (K i) (V i) (β i) (γ i) (state delta K V β γ H_0 i)
  end.

Definition outputs {n d_k d_v} (delta : bool) (Q K : tensor [n; d_k]) (V : tensor [n; d_v]) (β γ : tensor [n])
  (H_0 : tensor [d_k; d_v]) : tensor [n; d_v] :=
  fun i c => ∑ a < d_k, Q i a * state delta K V β γ H_0 (S i) a c.

(** ** One step *)

Lemma sum2_plus m n f g : ∑ a < m, ∑ c < n, (f a c + g a c) = (∑ a < m, ∑ c < n, f a c) + ∑ a < m, ∑ c < n, g a c.
Proof. rewrite <- sum_plus. apply sum_ext; intros. apply sum_plus. Qed.

Lemma sum2_minus m n f g : ∑ a < m, ∑ c < n, (f a c - g a c) = (∑ a < m, ∑ c < n, f a c) - ∑ a < m, ∑ c < n, g a c.
Proof. rewrite <- sum_minus. apply sum_ext; intros. apply sum_minus. Qed.

Lemma sum2_l x m n f : x * (∑ a < m, ∑ c < n, f a c) = ∑ a < m, ∑ c < n, x * f a c.
Proof. rewrite sum_l. apply sum_ext; intros. apply sum_l. Qed.

Section one_step.
  Context {d_k d_v : nat} (delta : bool) (k tk : tensor [d_k]) (v tv : tensor [d_v]) (β γ tβ tγ : R).
  Context (H tH : tensor [d_k; d_v]).

  Let r : tensor [d_v] := fun c => v c - γ * ∑ b < d_k, k b * H b c.
  Definition twritten : tensor [d_v] := fun c =>
    if delta
    then tβ * (v c - γ * ∑ b < d_k, k b * H b c)
         + β * (tv c - tγ * (∑ b < d_k, k b * H b c) - γ * (∑ b < d_k, tk b * H b c) - γ * ∑ b < d_k, k b * tH b c)
    else tv c.
  Definition tstep : tensor [d_k; d_v] := fun a c =>
    tγ * H a c + γ * tH a c + tk a * written delta k v β γ H c + k a * twritten c.

  Variable dH : tensor [d_k; d_v].
  Let u := written delta k v β γ H.
  Let du' : tensor [d_v] := fun c => ∑ a < d_k, k a * dH a c.
  Let dv : tensor [d_v] := fun c => if delta then β * du' c else du' c.

  Lemma step_adjoint :
    ⟨dH, tstep⟩ = dot (s := [d_k; d_v]) (fun a c => γ * (dH a c - if delta then k a * dv c else 0)) tH
      + dot (s := [d_k]) (fun a => (∑ c < d_v, u c * dH a c) - if delta then γ * ∑ c < d_v, dv c * H a c else 0) tk
      + ⟨dv, tv⟩
      + (if delta then ∑ c < d_v, du' c * r c else 0) * tβ
      + (∑ a < d_k, ∑ c < d_v, (dH a c - if delta then k a * dv c else 0) * H a c) * tγ.
  Proof.
    assert (Hu : ∑ a < d_k, ∑ c < d_v, dH a c * (k a * twritten c) = ∑ c < d_v, du' c * twritten c).
    { rewrite sum_swap. apply sum_ext; intros c _. unfold du'. rewrite sum_r. apply sum_ext; intros. ring. }
    assert (Hk : ∑ a < d_k, ∑ c < d_v, dH a c * (tk a * u c) = ∑ a < d_k, (∑ c < d_v, u c * dH a c) * tk a).
    { apply sum_ext; intros a _. rewrite sum_r. apply sum_ext; intros. ring. }
    transitivity (tγ * (∑ a < d_k, ∑ c < d_v, dH a c * H a c) + γ * (∑ a < d_k, ∑ c < d_v, dH a c * tH a c)
      + (∑ a < d_k, (∑ c < d_v, u c * dH a c) * tk a) + ∑ c < d_v, du' c * twritten c).
    { rewrite <- Hu, <- Hk, !sum2_l, <- !sum2_plus. simpl. apply sum_ext; intros a _. apply sum_ext; intros c _. unfold tstep. fold u. ring. }
    destruct delta eqn:Hd; simpl.
    - assert (Hw : ∑ c < d_v, du' c * twritten c = tβ * (∑ c < d_v, du' c * r c) + (∑ c < d_v, dv c * tv c)
        - tγ * (∑ a < d_k, ∑ c < d_v, k a * dv c * H a c) - γ * (∑ a < d_k, ∑ c < d_v, tk a * dv c * H a c)
        - γ * (∑ a < d_k, ∑ c < d_v, k a * dv c * tH a c)).
      { assert (S3 : forall (x : tensor [d_k]) (X : tensor [d_k; d_v]), ∑ a < d_k, ∑ c < d_v, x a * dv c * X a c = ∑ c < d_v, dv c * ∑ b < d_k, x b * X b c).
        { intros x X. rewrite sum_swap. apply sum_ext; intros c _. rewrite sum_l. apply sum_ext; intros. ring. }
        rewrite !S3, !sum_l, <- sum_plus, <- !sum_minus. apply sum_ext; intros c _. unfold twritten, r, dv. rewrite Hd. ring. }
      rewrite Hw.
      assert (E1 : ∑ a < d_k, ∑ c < d_v, (dH a c - k a * dv c) * H a c
        = (∑ a < d_k, ∑ c < d_v, dH a c * H a c) - ∑ a < d_k, ∑ c < d_v, k a * dv c * H a c).
      { rewrite <- sum2_minus. apply sum_ext; intros a _. apply sum_ext; intros. ring. }
      assert (E2 : ∑ a < d_k, ∑ c < d_v, γ * (dH a c - k a * dv c) * tH a c
        = γ * (∑ a < d_k, ∑ c < d_v, dH a c * tH a c) - γ * ∑ a < d_k, ∑ c < d_v, k a * dv c * tH a c).
      { rewrite !sum2_l, <- sum2_minus. apply sum_ext; intros a _. apply sum_ext; intros c _. ring. }
      assert (E3 : ∑ a < d_k, ((∑ c < d_v, u c * dH a c) - γ * ∑ c < d_v, dv c * H a c) * tk a
        = (∑ a < d_k, (∑ c < d_v, u c * dH a c) * tk a) - γ * ∑ a < d_k, ∑ c < d_v, tk a * dv c * H a c).
      { rewrite sum_l, <- sum_minus. apply sum_ext; intros a _. rewrite Rmult_minus_distr_r. f_equal.
        rewrite Rmult_assoc. f_equal. rewrite sum_r. apply sum_ext; intros. ring. }
      rewrite E1, E2, E3. ring.
    - assert (Ev : ∑ c < d_v, du' c * twritten c = ∑ c < d_v, dv c * tv c)
        by (apply sum_ext; intros c _; unfold dv, twritten; now rewrite Hd).
      assert (E1 : ∑ a < d_k, ∑ c < d_v, (dH a c - 0) * H a c = ∑ a < d_k, ∑ c < d_v, dH a c * H a c)
        by (apply sum_ext; intros a _; apply sum_ext; intros; ring).
      assert (E2 : ∑ a < d_k, ∑ c < d_v, γ * (dH a c - 0) * tH a c = γ * ∑ a < d_k, ∑ c < d_v, dH a c * tH a c)
        by (rewrite sum2_l; apply sum_ext; intros a _; apply sum_ext; intros; ring).
      assert (E3 : ∑ a < d_k, ((∑ c < d_v, u c * dH a c) - 0) * tk a = ∑ a < d_k, (∑ c < d_v, u c * dH a c) * tk a)
        by (apply sum_ext; intros; ring).
      rewrite E1, E2, E3, Ev. ring.
  Qed.
End one_step.

(** ** All tokens *)

Section all_tokens.
  Context {n d_k d_v : nat} (delta : bool).
  Context (q k : R -> tensor [n; d_k]) (v : R -> tensor [n; d_v]) (β γ : R -> tensor [n]) (h : R -> tensor [d_k; d_v]) (t : R).
  Context (tQ tK : tensor [n; d_k]) (tV : tensor [n; d_v]) (tβ tγ : tensor [n]) (th : tensor [d_k; d_v]).
  Hypothesis (HQ : moves q t tQ) (HK : moves k t tK) (HV : moves v t tV) (Hβ : moves β t tβ) (Hγ : moves γ t tγ) (Hh : moves h t th).

  Let H (u : R) (i : nat) : tensor [d_k; d_v] := state delta (k u) (v u) (β u) (γ u) (h u) i.

  Fixpoint tstate (i : nat) : tensor [d_k; d_v] :=
    match i with
    | O => th
    | S i => tstep delta (k t i) (tK i) (v t i) (tV i) (β t i) (γ t i) (tβ i) (tγ i) (H t i) (tstate i)
    end.

  Lemma state_moves i : (i <= n)%nat -> moves (s := [d_k; d_v]) (fun u => H u i) t (tstate i).
  Proof.
    induction i as [|i IH]; intro Hi; [exact Hh|]. specialize (IH ltac:(lia)).
    assert (Di : (i < n)%nat) by lia. intros a Ha c Hc.
    assert (Dr : is_derive (fun u => ∑ b < d_k, k u i b * H u i b c) t (∑ b < d_k, (tK i b * H t i b c + k t i b * tstate i b c))).
    { apply (sum_derive d_k (fun b u => k u i b * H u i b c)). intros b Hb. exact (derive_mult _ _ t _ _ (HK i Di b Hb) (IH b Hb c Hc)). }
    assert (Dw : is_derive (fun u => written delta (k u i) (v u i) (β u i) (γ u i) (H u i) c) t
      (twritten delta (k t i) (tK i) (v t i) (tV i) (β t i) (γ t i) (tβ i) (tγ i) (H t i) (tstate i) c)).
    { unfold written, twritten. case delta; [|exact (HV i Di c Hc)].
      cbv beta iota. eapply derive_eq; [exact (derive_mult _ _ t _ _ (Hβ i Di) (derive_minus _ _ t _ _ (HV i Di c Hc) (derive_mult _ _ t _ _ (Hγ i Di) Dr)))|].
      cbv beta. rewrite sum_plus. ring. }
    eapply derive_eq.
    - exact (derive_plus _ _ t _ _ (derive_mult _ _ t _ _ (Hγ i Di) (IH a Ha c Hc)) (derive_mult _ _ t _ _ (HK i Di a Ha) Dw)).
    - cbn [tstate]. unfold tstep. cbv beta. ring.
  Qed.

  Definition toutputs : tensor [n; d_v] := fun i c => ∑ a < d_k, (tQ i a * H t (S i) a c + q t i a * tstate (S i) a c).

  Lemma outputs_moves : moves (s := [n; d_v]) (fun u => outputs delta (q u) (k u) (v u) (β u) (γ u) (h u)) t toutputs.
  Proof.
    intros i Hi c Hc. apply (sum_derive d_k (fun a u => q u i a * H u (S i) a c)). intros a Ha.
    exact (derive_mult _ _ t _ _ (HQ i Hi a Ha) (state_moves (S i) Hi a Ha c Hc)).
  Qed.

  (** The recursion of the backward: F i comes from the future to the state that token i finds. *)
  Context (dO : tensor [n; d_v]) (F dH : nat -> tensor [d_k; d_v]).
  Let r : tensor [n; d_v] := fun i c => v t i c - γ t i * ∑ b < d_k, k t i b * H t i b c.
  Let du : tensor [n; d_v] := fun i c => ∑ a < d_k, k t i a * dH i a c.
  Let dv : tensor [n; d_v] := fun i c => if delta then β t i * du i c else du i c.
  Hypothesis HdH : forall i a c, (i < n)%nat -> dH i a c = F (S i) a c + q t i a * dO i c.
  Hypothesis HF : forall i a c, (i < n)%nat -> F i a c = γ t i * (dH i a c - if delta then k t i a * dv i c else 0).

  Let dQ : tensor [n; d_k] := fun i a => ∑ c < d_v, dO i c * H t (S i) a c.
  Let dK : tensor [n; d_k] := fun i a =>
    (∑ c < d_v, written delta (k t i) (v t i) (β t i) (γ t i) (H t i) c * dH i a c)
    - if delta then γ t i * ∑ c < d_v, dv i c * H t i a c else 0.
  Let dβ : tensor [n] := fun i => if delta then ∑ c < d_v, du i c * r i c else 0.
  Let dγ : tensor [n] := fun i => ∑ a < d_k, ∑ c < d_v, (dH i a c - if delta then k t i a * dv i c else 0) * H t i a c.

  (** One token: what comes to its output and to the state that it leaves is what goes to its inputs and to the state
      that it found. *)
  Lemma token i : (i < n)%nat ->
    dot (s := [d_v]) (dO i) (toutputs i) + ⟨F (S i), tstate (S i)⟩
    = ⟨F i, tstate i⟩ + (dot (s := [d_k]) (dQ i) (tQ i) + dot (s := [d_k]) (dK i) (tK i) + dot (s := [d_v]) (dv i) (tV i)
      + dβ i * tβ i + dγ i * tγ i).
  Proof.
    intro Hi.
    pose proof (step_adjoint delta (k t i) (tK i) (v t i) (tV i) (β t i) (γ t i) (tβ i) (tγ i) (H t i) (tstate i) (dH i)) as A.
    change (⟨dH i, tstate (S i)⟩
      = dot (s := [d_k; d_v]) (fun a c => γ t i * (dH i a c - if delta then k t i a * dv i c else 0)) (tstate i)
        + dot (s := [d_k]) (dK i) (tK i) + dot (s := [d_v]) (dv i) (tV i) + dβ i * tβ i + dγ i * tγ i) in A.
    assert (L : dot (s := [d_v]) (dO i) (toutputs i) + ⟨F (S i), tstate (S i)⟩
      = dot (s := [d_k]) (dQ i) (tQ i) + ⟨dH i, tstate (S i)⟩).
    { transitivity (dot (s := [d_k]) (dQ i) (tQ i) + (∑ a < d_k, ∑ c < d_v, q t i a * dO i c * tstate (S i) a c) + ⟨F (S i), tstate (S i)⟩).
      - f_equal. unfold toutputs, dQ. cbn [dot].
        transitivity (∑ c < d_v, ∑ a < d_k, (dO i c * H t (S i) a c * tQ i a + q t i a * dO i c * tstate (S i) a c)).
        + apply sum_ext; intros c _. rewrite sum_l. apply sum_ext; intros a _. ring.
        + rewrite sum2_plus, sum_swap. f_equal; [|apply sum_swap]. apply sum_ext; intros a _. now rewrite sum_r.
      - rewrite Rplus_assoc. f_equal. cbn [dot]. rewrite <- sum2_plus. apply sum_ext; intros a _. apply sum_ext; intros c _. rewrite HdH by exact Hi. ring. }
    rewrite L, A.
    rewrite (dot_ext (F i) (fun a c => γ t i * (dH i a c - (if delta then k t i a * dv i c else 0))) (tstate i) (tstate i));
      [|intros a _ c _; apply HF; exact Hi|apply equal_refl].
    ring.
  Qed.

  Lemma all_tokens m : (m <= n)%nat ->
    (∑ i < m, dot (s := [d_v]) (dO i) (toutputs i)) + ⟨F m, tstate m⟩
    = ⟨F 0%nat, th⟩ + ∑ i < m, (dot (s := [d_k]) (dQ i) (tQ i) + dot (s := [d_k]) (dK i) (tK i) + dot (s := [d_v]) (dv i) (tV i)
      + dβ i * tβ i + dγ i * tγ i).
  Proof.
    induction m as [|m IH]; intro Hm; [cbn [sum tstate]; ring|].
    specialize (IH ltac:(lia)). pose proof (token m Hm) as T. cbn [sum]. lra.
  Qed.

  (** Everything moves at once: a loss of the outputs and of the last state. *)
  Lemma recurrent_derive (ℓ : tensor [n; d_v] -> tensor [d_k; d_v] -> R) :
    gradient2 ℓ (outputs delta (q t) (k t) (v t) (β t) (γ t) (h t)) (H t n) dO (F n) ->
    is_derive (fun u => ℓ (outputs delta (q u) (k u) (v u) (β u) (γ u) (h u)) (H u n)) t
      (⟨F 0%nat, th⟩ + ⟨dQ, tQ⟩ + ⟨dK, tK⟩ + ⟨dv, tV⟩ + ⟨dβ, tβ⟩ + ⟨dγ, tγ⟩).
  Proof.
    intro Hℓ. eapply derive_eq.
    - apply (Hℓ (fun u => outputs delta (q u) (k u) (v u) (β u) (γ u) (h u)) (fun u => H u n) t toutputs (tstate n));
        [reflexivity|reflexivity|exact outputs_moves|exact (state_moves n (Nat.le_refl n))].
    - pose proof (all_tokens n (Nat.le_refl n)) as A. rewrite !sum_plus in A. cbn [dot] in *. lra.
  Qed.
End all_tokens.

Section of_one_input.
  Context {n d_k d_v : nat} (delta : bool) (Q K : tensor [n; d_k]) (V : tensor [n; d_v]) (β γ : tensor [n]) (H_0 : tensor [d_k; d_v]).
  Context (ℓ : tensor [n; d_v] -> tensor [d_k; d_v] -> R) (dO : tensor [n; d_v]) (F dH : nat -> tensor [d_k; d_v]).
  Let H := state delta K V β γ H_0.
  Let du : tensor [n; d_v] := fun i c => ∑ a < d_k, K i a * dH i a c.
  Let dv : tensor [n; d_v] := fun i c => if delta then β i * du i c else du i c.
  Hypothesis HdH : forall i a c, (i < n)%nat -> dH i a c = F (S i) a c + Q i a * dO i c.
  Hypothesis HF : forall i a c, (i < n)%nat -> F i a c = γ i * (dH i a c - if delta then K i a * dv i c else 0).
  Let loss Q K V β γ H_0 := ℓ (outputs delta Q K V β γ H_0) (state delta K V β γ H_0 n).
  Hypothesis Hℓ : gradient2 ℓ (outputs delta Q K V β γ H_0) (H n) dO (F n).

  Ltac one x Hx Ht q k v β' γ' h hq hk hv hβ hγ hh :=
    refine (derive_eq _ _ _ _ (recurrent_derive delta q k v β' γ' h _ _ _ _ _ _ _ hq hk hv hβ hγ hh dO F dH _ _ ℓ _) _);
    [rewrite ?Hx; exact HdH|rewrite ?Hx; exact HF|rewrite ?Hx; exact Hℓ|rewrite ?Hx, ?dot_zero; fold H; rewrite ?Rplus_0_l, ?Rplus_0_r; reflexivity].

  Lemma recurrent_Q : gradient (fun Q => loss Q K V β γ H_0) Q (fun i a => ∑ c < d_v, dO i c * H (S i) a c).
  Proof.
    intros x t tX Hx Ht.
    one x Hx Ht x (fun _ : R => K) (fun _ : R => V) (fun _ : R => β) (fun _ : R => γ) (fun _ : R => H_0)
      Ht (moves_const K t) (moves_const V t) (moves_const β t) (moves_const γ t) (moves_const H_0 t).
  Qed.

  Lemma recurrent_K : gradient (fun K => loss Q K V β γ H_0) K (fun i a =>
    (∑ c < d_v, written delta (K i) (V i) (β i) (γ i) (H i) c * dH i a c)
    - if delta then γ i * ∑ c < d_v, dv i c * H i a c else 0).
  Proof.
    intros x t tX Hx Ht.
    one x Hx Ht (fun _ : R => Q) x (fun _ : R => V) (fun _ : R => β) (fun _ : R => γ) (fun _ : R => H_0)
      (moves_const Q t) Ht (moves_const V t) (moves_const β t) (moves_const γ t) (moves_const H_0 t).
  Qed.

  Lemma recurrent_V : gradient (fun V => loss Q K V β γ H_0) V dv.
  Proof.
    intros x t tX Hx Ht.
    one x Hx Ht (fun _ : R => Q) (fun _ : R => K) x (fun _ : R => β) (fun _ : R => γ) (fun _ : R => H_0)
      (moves_const Q t) (moves_const K t) Ht (moves_const β t) (moves_const γ t) (moves_const H_0 t).
  Qed.

  Lemma recurrent_β : gradient (fun β => loss Q K V β γ H_0) β
    (fun i => if delta then ∑ c < d_v, du i c * (V i c - γ i * ∑ b < d_k, K i b * H i b c) else 0).
  Proof.
    intros x t tX Hx Ht.
    one x Hx Ht (fun _ : R => Q) (fun _ : R => K) (fun _ : R => V) x (fun _ : R => γ) (fun _ : R => H_0)
      (moves_const Q t) (moves_const K t) (moves_const V t) Ht (moves_const γ t) (moves_const H_0 t).
  Qed.

  Lemma recurrent_γ : gradient (fun γ => loss Q K V β γ H_0) γ
    (fun i => ∑ a < d_k, ∑ c < d_v, (dH i a c - if delta then K i a * dv i c else 0) * H i a c).
  Proof.
    intros x t tX Hx Ht.
    one x Hx Ht (fun _ : R => Q) (fun _ : R => K) (fun _ : R => V) (fun _ : R => β) x (fun _ : R => H_0)
      (moves_const Q t) (moves_const K t) (moves_const V t) (moves_const β t) Ht (moves_const H_0 t).
  Qed.

  Lemma recurrent_H_0 : gradient (fun H_0 => loss Q K V β γ H_0) H_0 (F 0%nat).
  Proof.
    intros x t tX Hx Ht.
    one x Hx Ht (fun _ : R => Q) (fun _ : R => K) (fun _ : R => V) (fun _ : R => β) (fun _ : R => γ) x
      (moves_const Q t) (moves_const K t) (moves_const V t) (moves_const β t) (moves_const γ t) Ht.
  Qed.
End of_one_input.

(** The recursion can always be run: there are such F and dH, whatever comes to the last state. *)
Lemma recursion_runs {n d_k d_v} (delta : bool) (Q K : tensor [n; d_k]) (β γ : tensor [n]) (dO : tensor [n; d_v]) (F_n : tensor [d_k; d_v]) :
  exists F dH : nat -> tensor [d_k; d_v],
    (forall a c, F n a c = F_n a c)
    /\ (forall i a c, (i < n)%nat -> dH i a c = F (S i) a c + Q i a * dO i c)
    /\ (forall i a c, (i < n)%nat -> F i a c = γ i * (dH i a c - if delta then K i a * (β i * ∑ b < d_k, K i b * dH i b c) else 0)).
Proof.
  set (back := fun (i : nat) (G : tensor [d_k; d_v]) (a c : nat) => γ i * (G a c - if delta then K i a * (β i * ∑ b < d_k, K i b * G b c) else 0)).
  set (into := fun (i : nat) (F : tensor [d_k; d_v]) (a c : nat) => F a c + Q i a * dO i c).
  set (f := fix f (m i : nat) : tensor [d_k; d_v] := match m with O => F_n | S m => back i (into i (f m (S i))) end).
  exists (fun i => f (n - i)%nat i), (fun i => into i (f (n - S i)%nat (S i))). repeat split.
  - intros a c. now rewrite Nat.sub_diag.
  - intros i a c Hi. replace (n - i)%nat with (S (n - S i)) by lia. reflexivity.
Qed.

Lemma outputs_only {n d_k d_v} (ℓ : tensor [n; d_v] -> R) (O dO : tensor [n; d_v]) (H F : tensor [d_k; d_v]) :
  (forall a c, F a c = 0) -> gradient ℓ O dO -> gradient2 (fun O _ => ℓ O) O H dO F.
Proof.
  intros HF Hℓ x y t tX tY Hx Hy HX HY. eapply derive_eq; [exact (Hℓ x t tX Hx HX)|].
  assert (E : ⟨F, tY⟩ = 0) by (apply sum_0; intros a _; apply sum_0; intros c _; rewrite HF; exact (Rmult_0_l _)). rewrite E. ring.
Qed.

(** ** The chapter's theorems *)

(** The delta rule backward, for n tokens, each with its β_i and γ_i. [H i] is what token i finds, the formula's
    H_(i−1); [H (S i)] is what it leaves, the formula's H_i. Let dH be what the recursion from the last token gives,
    where F i comes from the future: then these are the gradients of queries, keys, values, β, γ and of the state at the
    start. *)
Theorem eq_var_recurrent__delta n d_k d_v (Q K : tensor [n; d_k]) (V : tensor [n; d_v]) (β γ : tensor [n])
    (H_0 : tensor [d_k; d_v]) (ℓ : tensor [n; d_v] -> R) (dO : tensor [n; d_v]) (F dH : nat -> tensor [d_k; d_v]) :
  let H := state true K V β γ H_0 in
  let r : tensor [n; d_v] := fun i c => V i c - γ i * ∑ b < d_k, K i b * H i b c in
  let u : tensor [n; d_v] := fun i c => β i * r i c in
  let du : tensor [n; d_v] := fun i c => ∑ a < d_k, K i a * dH i a c in
  let dv : tensor [n; d_v] := fun i c => β i * du i c in
  (forall a c, F n a c = 0) ->
  (forall i a c, (i < n)%nat -> dH i a c = F (S i) a c + Q i a * dO i c) ->
  (forall i a c, (i < n)%nat -> F i a c = γ i * (dH i a c - K i a * dv i c)) ->
  gradient ℓ (outputs true Q K V β γ H_0) dO ->
  gradient (fun Q => ℓ (outputs true Q K V β γ H_0)) Q (fun i a => ∑ c < d_v, dO i c * H (S i) a c)
  /\ gradient (fun V => ℓ (outputs true Q K V β γ H_0)) V dv
  /\ gradient (fun β => ℓ (outputs true Q K V β γ H_0)) β (fun i => ∑ c < d_v, du i c * r i c)
  /\ gradient (fun K => ℓ (outputs true Q K V β γ H_0)) K
       (fun i a => (∑ c < d_v, u i c * dH i a c) - γ i * ∑ c < d_v, dv i c * H i a c)
  /\ gradient (fun γ => ℓ (outputs true Q K V β γ H_0)) γ
       (fun i => ∑ a < d_k, ∑ c < d_v, (dH i a c - K i a * dv i c) * H i a c)
  /\ gradient (fun H_0 => ℓ (outputs true Q K V β γ H_0)) H_0 (F 0%nat).
Proof.
  intros H r u du dv HFn HdH HF Hℓ. set (ℓ2 := fun (O : tensor [n; d_v]) (_ : tensor [d_k; d_v]) => ℓ O).
  assert (H2 : gradient2 ℓ2 (outputs true Q K V β γ H_0) (H n) dO (F n)) by exact (outputs_only ℓ _ dO (H n) (F n) HFn Hℓ).
  refine (conj _ (conj _ (conj _ (conj _ (conj _ _))))).
  - exact (recurrent_Q true Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
  - exact (recurrent_V true Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
  - exact (recurrent_β true Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
  - exact (recurrent_K true Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
  - exact (recurrent_γ true Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
  - exact (recurrent_H_0 true Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
Qed.

(** A state that only fades, u_i = v_i, backward: three formulas are shorter. [H i] is the formula's H_(i−1), [H (S i)]
    its H_i. *)
Theorem eq_var_recurrent__decay n d_k d_v (Q K : tensor [n; d_k]) (V : tensor [n; d_v]) (β γ : tensor [n])
    (H_0 : tensor [d_k; d_v]) (ℓ : tensor [n; d_v] -> R) (dO : tensor [n; d_v]) (F dH : nat -> tensor [d_k; d_v]) :
  let H := state false K V β γ H_0 in
  (forall a c, F n a c = 0) ->
  (forall i a c, (i < n)%nat -> dH i a c = F (S i) a c + Q i a * dO i c) ->
  (forall i a c, (i < n)%nat -> F i a c = γ i * dH i a c) ->
  gradient ℓ (outputs false Q K V β γ H_0) dO ->
  gradient (fun Q => ℓ (outputs false Q K V β γ H_0)) Q (fun i a => ∑ c < d_v, dO i c * H (S i) a c)
  /\ gradient (fun V => ℓ (outputs false Q K V β γ H_0)) V (fun i c => ∑ a < d_k, K i a * dH i a c)
  /\ gradient (fun K => ℓ (outputs false Q K V β γ H_0)) K (fun i a => ∑ c < d_v, V i c * dH i a c)
  /\ gradient (fun γ => ℓ (outputs false Q K V β γ H_0)) γ (fun i => ∑ a < d_k, ∑ c < d_v, dH i a c * H i a c)
  /\ gradient (fun H_0 => ℓ (outputs false Q K V β γ H_0)) H_0 (F 0%nat).
Proof.
  intros H HFn HdH HF' Hℓ. set (ℓ2 := fun (O : tensor [n; d_v]) (_ : tensor [d_k; d_v]) => ℓ O).
  assert (H2 : gradient2 ℓ2 (outputs false Q K V β γ H_0) (H n) dO (F n)) by exact (outputs_only ℓ _ dO (H n) (F n) HFn Hℓ).
  assert (HF : forall i a c, (i < n)%nat -> F i a c = γ i * (dH i a c - 0)) by (intros; rewrite HF' by assumption; ring).
  refine (conj _ (conj _ (conj _ (conj _ _)))).
  - exact (recurrent_Q false Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
  - exact (recurrent_V false Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
  - refine (gradient_ext _ _ _ _ _ (recurrent_K false Q K V β γ H_0 ℓ2 dO F dH HdH HF H2)).
    intros i _ a _. simpl. apply Rminus_0_r.
  - refine (gradient_ext _ _ _ _ _ (recurrent_γ false Q K V β γ H_0 ℓ2 dO F dH HdH HF H2)).
    intros i _. simpl. apply sum_ext; intros a _. apply sum_ext; intros c _. now rewrite Rminus_0_r.
  - exact (recurrent_H_0 false Q K V β γ H_0 ℓ2 dO F dH HdH HF H2).
Qed.

(** The product of the γ of the tokens after j, up to i: what is left at i of what j wrote. *)
Fixpoint left_over (γ : nat -> R) (j i : nat) : R :=
  match i with
  | O => 1
  | S l => if j <=? l then γ i * left_over γ j l else 1
  end.

(** The recurrent form is the parallel form: each output is a sum over the tokens up to its own, faded. *)
Theorem recurrent_is_parallel n d_k d_v (Q K : tensor [n; d_k]) (V : tensor [n; d_v]) (β γ : tensor [n]) i c :
  outputs false Q K V β γ (fun _ _ => 0) i c
  = ∑ j < S i, left_over γ j i * (∑ a < d_k, Q i a * K j a) * V j c.
Proof.
  assert (HS : forall m a, state (d_k := d_k) (d_v := d_v) false K V β γ (fun _ _ => 0) (S m) a c = ∑ j < S m, left_over γ j m * K j a * V j c).
  { induction m as [|l IH]; intro a.
    - change (γ 0%nat * 0 + K 0%nat a * V 0%nat c = 0 + 1 * K 0%nat a * V 0%nat c). ring.
    - change (state (d_k := d_k) (d_v := d_v) false K V β γ (fun _ _ => 0) (S (S l)) a c)
        with (γ (S l) * state (d_k := d_k) (d_v := d_v) false K V β γ (fun _ _ => 0) (S l) a c + K (S l) a * V (S l) c).
      rewrite IH. change (sum (S (S l)) ?f) with (sum (S l) f + f (S l)). f_equal.
      + rewrite sum_l. apply sum_ext; intros j Hj. cbn [left_over]. destruct (Nat.leb_spec j l); [ring|lia].
      + cbn [left_over]. destruct (Nat.leb_spec (S l) l); [lia|ring]. }
  unfold outputs. transitivity (∑ a < d_k, ∑ j < S i, Q i a * (left_over γ j i * K j a * V j c)).
  - apply sum_ext; intros a _. rewrite HS. now rewrite sum_l.
  - rewrite sum_swap. apply sum_ext; intros j _. rewrite sum_l, sum_r. apply sum_ext; intros. ring.
Qed.

(** Where nothing fades, the recurrent form is causal linear attention without its normalizer, for each of the n tokens.
    *)
Theorem recurrent_is_linear_attention n d_k d_v (Q K : tensor [n; d_k]) (V : tensor [n; d_v]) (β : tensor [n]) i c :
  (i < n)%nat ->
  outputs false Q K V β (fun _ => 1) (fun _ _ => 0) i c = numerator causal Q K V i c.
Proof.
  intro Hi. rewrite recurrent_is_parallel.
  assert (H1 : forall j l, left_over (fun _ => 1) j l = 1).
  { intros j. induction l as [|l IH]; [reflexivity|]. cbn [left_over]. rewrite IH. destruct (j <=? l); ring. }
  unfold numerator, memory. transitivity (∑ j < n, ∑ a < d_k, Q i a * when (causal i j) (K j a * V j c)).
  - replace n with (S i + (n - S i))%nat by lia. rewrite sum_add. rewrite (sum_0 (n - S i)).
    + rewrite Rplus_0_r. apply sum_ext; intros j Hj. rewrite H1, Rmult_1_l, sum_r. apply sum_ext; intros a _.
      unfold causal. destruct (Nat.leb_spec j i); [simpl; ring|lia].
    + intros j _. apply sum_0. intros a _. unfold causal. destruct (Nat.leb_spec (S i + j) i); [lia|simpl; ring].
  - rewrite sum_swap. apply sum_ext; intros. now rewrite sum_l.
Qed.

(** With β = 1 and a key of length 1, what the delta rule writes is read back under the same key, whatever stood there. *)
Theorem delta_rule_reads_back d_k d_v (k : tensor [d_k]) (v : tensor [d_v]) γ (H : tensor [d_k; d_v]) c :
  ∑ a < d_k, k a ^ 2 = 1 ->
  ∑ a < d_k, k a * step true k v 1 γ H a c = v c.
Proof.
  intro Hk. unfold step, written. set (s := ∑ b < d_k, k b * H b c).
  transitivity (γ * s + (∑ a < d_k, k a ^ 2) * (v c - γ * s)); [|rewrite Hk; ring].
  unfold s at 2. rewrite sum_l, sum_r, <- sum_plus. apply sum_ext; intros a _. fold s. ring.
Qed.
