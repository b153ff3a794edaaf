(** * Rotary positions (chapter 9)

    The first 2 m columns of a row are m pairs; pair l turns by the angle p·θ_l, where p is the position of the row.
    Any positions, any θ, both layouts; the columns after 2 m stay. *)

From attnbook Require Export head.

Inductive layout := interleaved | half.

(** Which columns make pair l: 2l and 2l + 1, or l and m + l. *)
Definition col1 (lay : layout) (m l : nat) : nat := match lay with interleaved => l * 2 | half => l end.
Definition col2 (lay : layout) (m l : nat) : nat := match lay with interleaved => l * 2 + 1 | half => m + l end.

(** Of a column among the first 2 m: its pair, and whether it is the first of the two. *)
Definition pair_of (lay : layout) (m c : nat) : nat :=
  match lay with interleaved => c / 2 | half => if c <? m then c else c - m end.
Definition is_first (lay : layout) (m c : nat) : bool := match lay with interleaved => Nat.even c | half => c <? m end.

(** [turn lay m θ p x] is R_p x, the row x turned at position p. *)
Definition turn (lay : layout) (m : nat) (θ : nat -> R) (p : R) (x : nat -> R) : nat -> R := fun c =>
  let l := pair_of lay m c in
  let x1 := x (col1 lay m l) in
  let x2 := x (col2 lay m l) in
  if c <? 2 * m
  then if is_first lay m c then x1 * cos (p * θ l) - x2 * sin (p * θ l) else x1 * sin (p * θ l) + x2 * cos (p * θ l)
  else x c.

(** All rows of a matrix, row i at its position [pos i]. *)
Definition rotary {n d} (lay : layout) (m : nat) (θ : nat -> R) (pos : nat -> R) (X : tensor [n; d]) : tensor [n; d] :=
  fun i => turn lay m θ (pos i) (X i).

(** ** Columns and pairs *)

Lemma pair_col1 lay m l : (l < m)%nat -> pair_of lay m (col1 lay m l) = l.
Proof.
  intro H. destruct lay; unfold pair_of, col1; [now rewrite Nat.div_mul|].
  destruct (Nat.ltb_spec l m); lia.
Qed.

Lemma pair_col2 lay m l : (l < m)%nat -> pair_of lay m (col2 lay m l) = l.
Proof.
  intro H. destruct lay; unfold pair_of, col2; [rewrite Nat.add_comm, Nat.div_add; simpl; lia|].
  destruct (Nat.ltb_spec (m + l) m); lia.
Qed.

Lemma first_col1 lay m l : (l < m)%nat -> is_first lay m (col1 lay m l) = true.
Proof.
  intro H. destruct lay; unfold is_first, col1; [rewrite Nat.even_mul; apply orb_true_r|].
  now apply Nat.ltb_lt.
Qed.

Lemma first_col2 lay m l : (l < m)%nat -> is_first lay m (col2 lay m l) = false.
Proof.
  intro H. destruct lay; unfold is_first, col2; [rewrite Nat.even_add, Nat.even_mul; now rewrite orb_true_r|].
  apply Nat.ltb_ge. lia.
Qed.

Lemma col1_lt lay m l : (l < m)%nat -> (col1 lay m l < 2 * m)%nat.
Proof. destruct lay; simpl; lia. Qed.

Lemma col2_lt lay m l : (l < m)%nat -> (col2 lay m l < 2 * m)%nat.
Proof. destruct lay; simpl; lia. Qed.

(** A sum over the columns is one over the pairs and one over the columns that stay. *)
Lemma sum_pairs lay m d f : (2 * m <= d)%nat ->
  sum d f = (∑ l < m, (f (col1 lay m l) + f (col2 lay m l))) + ∑ c < d - 2 * m, f (2 * m + c)%nat.
Proof.
  intro H. replace d with (2 * m + (d - 2 * m))%nat at 1 by lia. rewrite sum_add. f_equal. destruct lay; simpl col1; simpl col2.
  - rewrite (Nat.mul_comm 2 m), sum_mul. apply sum_ext; intros l _. simpl. rewrite Nat.add_0_r. ring.
  - replace (2 * m)%nat with (m + m)%nat by lia. rewrite sum_add, <- sum_plus. reflexivity.
Qed.

Lemma turn_col1 lay m θ p x l : (l < m)%nat ->
  turn lay m θ p x (col1 lay m l) = x (col1 lay m l) * cos (p * θ l) - x (col2 lay m l) * sin (p * θ l).
Proof.
  intro H. unfold turn. rewrite pair_col1, first_col1 by exact H.
  now rewrite (proj2 (Nat.ltb_lt _ _) (col1_lt lay m l H)).
Qed.

Lemma turn_col2 lay m θ p x l : (l < m)%nat ->
  turn lay m θ p x (col2 lay m l) = x (col1 lay m l) * sin (p * θ l) + x (col2 lay m l) * cos (p * θ l).
Proof.
  intro H. unfold turn. rewrite pair_col2, first_col2 by exact H.
  now rewrite (proj2 (Nat.ltb_lt _ _) (col2_lt lay m l H)).
Qed.

Lemma turn_rest lay m θ p x c : turn lay m θ p x (2 * m + c) = x (2 * m + c)%nat.
Proof. unfold turn. now rewrite (proj2 (Nat.ltb_ge _ _) (Nat.le_add_r (2 * m) c)). Qed.

(** Two turns: what is left in an inner product is the difference of the positions. *)
Lemma turn_dot {d} lay m θ p r (x y : tensor [d]) : (2 * m <= d)%nat ->
  dot (s := [d]) (turn lay m θ p x) (turn lay m θ r y) = dot (s := [d]) x (turn lay m θ (r - p) y).
Proof.
  intro H. simpl. rewrite !(sum_pairs lay m d) by exact H. f_equal.
  - apply sum_ext; intros l Hl. rewrite !turn_col1, !turn_col2 by exact Hl.
    replace ((r - p) * θ l) with (r * θ l - p * θ l) by ring. rewrite cos_minus, sin_minus. ring.
  - apply sum_ext; intros c _. now rewrite !turn_rest.
Qed.

(** The transpose of a rotation is the rotation back. *)
Lemma turn_adjoint {d} lay m θ p (x y : tensor [d]) : (2 * m <= d)%nat ->
  dot (s := [d]) x (turn lay m θ p y) = dot (s := [d]) (turn lay m θ (- p) x) y.
Proof.
  intro H. simpl. rewrite !(sum_pairs lay m d) by exact H. f_equal.
  - apply sum_ext; intros l Hl. rewrite !turn_col1, !turn_col2 by exact Hl.
    replace (- p * θ l) with (- (p * θ l)) by ring. rewrite cos_neg, sin_neg. ring.
  - apply sum_ext; intros c _. now rewrite !turn_rest.
Qed.

Lemma turn_moves {d} lay m θ p (x : R -> tensor [d]) t tX : (2 * m <= d)%nat ->
  moves x t tX -> moves (s := [d]) (fun u => turn lay m θ p (x u)) t (turn lay m θ p tX).
Proof.
  intros Hm H c Hc. simpl. unfold turn. destruct (Nat.ltb_spec c (2 * m)) as [L|L]; [|now apply H].
  assert (Hl : (pair_of lay m c < m)%nat).
  { destruct lay; unfold pair_of; [apply Nat.div_lt_upper_bound; lia|]. destruct (Nat.ltb_spec c m); lia. }
  pose proof (col1_lt lay m _ Hl) as H1. pose proof (col2_lt lay m _ Hl) as H2.
  assert (D1 := H (col1 lay m (pair_of lay m c)) ltac:(lia)). assert (D2 := H (col2 lay m (pair_of lay m c)) ltac:(lia)).
  simpl in D1, D2. destruct (is_first lay m c).
  - eapply derive_eq; [exact (derive_minus _ _ t _ _ (derive_mult _ _ t _ _ D1 (derive_const _ t)) (derive_mult _ _ t _ _ D2 (derive_const _ t)))|].
    cbv beta. ring.
  - eapply derive_eq; [exact (derive_plus _ _ t _ _ (derive_mult _ _ t _ _ D1 (derive_const _ t)) (derive_mult _ _ t _ _ D2 (derive_const _ t)))|].
    cbv beta. ring.
Qed.

Lemma rotary_moves {n d} lay m θ pos (x : R -> tensor [n; d]) t tX : (2 * m <= d)%nat ->
  moves x t tX -> moves (s := [n; d]) (fun u => rotary lay m θ pos (x u)) t (rotary lay m θ pos tX).
Proof. intros Hm H i Hi. exact (turn_moves lay m θ (pos i) (fun u => x u i) t (tX i) Hm (H i Hi)). Qed.

Lemma rotary_adjoint {n d} lay m θ pos (X Y : tensor [n; d]) : (2 * m <= d)%nat ->
  ⟨X, rotary lay m θ pos Y⟩ = ⟨rotary lay m θ (fun i => - pos i) X, Y⟩.
Proof. intro Hm. apply sum_ext; intros i _. exact (turn_adjoint lay m θ (pos i) (X i) (Y i) Hm). Qed.

(** ** The chapter's theorems *)

(** The score of a turned query and a turned key sees only the difference of their positions. In both layouts, for all
    angles, and where only the first 2 m columns turn. *)
Theorem eq_var_rope_relative n_q n_k d_k lay m θ pos_q pos_k (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k]) i j :
  (2 * m <= d_k)%nat ->
  ∑ a < d_k, rotary lay m θ pos_q Q i a * rotary lay m θ pos_k K j a
  = ∑ a < d_k, Q i a * turn lay m θ (pos_k j - pos_q i) (K j) a.
Proof. exact (turn_dot lay m θ (pos_q i) (pos_k j) (Q i) (K j)). Qed.

(** Backward is the rotation by the opposite angle: if dX' is the gradient of any loss at the turned X' = R X, then
    dX' turned back is its gradient at X. So dQ from dQ', and dK from dK'. *)
Theorem eq_var_rope_vjp n d lay m θ pos (X : tensor [n; d]) (ℓ : tensor [n; d] -> R) (dX' : tensor [n; d]) :
  (2 * m <= d)%nat ->
  gradient ℓ (rotary lay m θ pos X) dX' ->
  gradient (fun X => ℓ (rotary lay m θ pos X)) X (rotary lay m θ (fun i => - pos i) dX').
Proof.
  intro Hm. apply (backward (rotary lay m θ pos) X (rotary lay m θ pos)).
  - intros x t tX _ Ht. exact (rotary_moves lay m θ pos x t tX Hm Ht).
  - intro tX. exact (rotary_adjoint lay m θ pos dX' tX Hm).
Qed.

(** Positions that turn, inside a head: dQ and dK are those of plain attention on the turned queries and keys, turned
    back. *)
Theorem rotary_head n_q n_k d_k d_v (M : mask) scale lay m θ pos_q pos_k (Q : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R) (dO : tensor [n_q; d_v]) :
  let Q' := rotary lay m θ pos_q Q in
  let K' := rotary lay m θ pos_k K in
  let P := weights M scale Q' K' B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  (2 * m <= d_k)%nat ->
  gradient ℓ (attention M scale Q' K' V B) dO ->
  gradient (fun Q => ℓ (attention M scale (rotary lay m θ pos_q Q) K' V B)) Q
    (rotary lay m θ (fun i => - pos_q i) (scale • (dS × K')))
  /\ gradient (fun K => ℓ (attention M scale Q' (rotary lay m θ pos_k K) V B)) K
    (rotary lay m θ (fun j => - pos_k j) (scale • (dS^T × Q'))).
Proof.
  intros Q' K' P dP dS Hm H. split.
  - apply (eq_var_rope_vjp n_q d_k lay m θ pos_q Q (fun Q' => ℓ (attention M scale Q' K' V B)) _ Hm).
    exact (eq_dQ n_q n_k d_k d_v M scale Q' K' V B ℓ dO H).
  - apply (eq_var_rope_vjp n_k d_k lay m θ pos_k K (fun K' => ℓ (attention M scale Q' K' V B)) _ Hm).
    exact (eq_dK n_q n_k d_k d_v M scale Q' K' V B ℓ dO H).
Qed.

(** A rotation keeps lengths, so the gradients of a row before and after the turn are equally long. *)
Theorem rotary_keeps_lengths d lay m θ p (dx' : tensor [d]) :
  (2 * m <= d)%nat -> ∑ c < d, turn lay m θ (- p) dx' c ^ 2 = ∑ c < d, dx' c ^ 2.
Proof.
  intro Hm. rewrite !(sum_pairs lay m d) by exact Hm. f_equal.
  - apply sum_ext; intros l Hl. rewrite turn_col1, turn_col2 by exact Hl. pose proof (sin2_cos2 (- p * θ l)) as H. unfold Rsqr in H.
    set (s := sin (- p * θ l)) in *. set (k := cos (- p * θ l)) in *.
    replace (dx' (col1 lay m l) ^ 2 + dx' (col2 lay m l) ^ 2)
      with ((dx' (col1 lay m l) ^ 2 + dx' (col2 lay m l) ^ 2) * (s * s + k * k)) by (rewrite H; ring).
    ring.
  - apply sum_ext; intros c _. now rewrite turn_rest.
Qed.

(** YaRN multiplies what was turned by μ: backward is the transpose, μ and the turn back, not the inverse. *)
Theorem yarn_backward n d lay m θ pos μ (X : tensor [n; d]) (ℓ : tensor [n; d] -> R) (dX' : tensor [n; d]) :
  (2 * m <= d)%nat ->
  gradient ℓ (μ • rotary lay m θ pos X) dX' ->
  gradient (fun X => ℓ (μ • rotary lay m θ pos X)) X (μ • rotary lay m θ (fun i => - pos i) dX').
Proof.
  intro Hm. apply (backward (fun X => μ • rotary lay m θ pos X) X (fun tX => μ • rotary lay m θ pos tX)).
  - intros x t tX _ Ht. exact (scaled_moves μ (fun u => rotary lay m θ pos (x u)) t _ (rotary_moves lay m θ pos x t tX Hm Ht)).
  - intro tX. rewrite dot_scaled_r, dot_scaled_l. f_equal. exact (rotary_adjoint lay m θ pos dX' tX Hm).
Qed.

(** ** A bias on the keys, added before the turn *)

Definition add_row {n d} (K : tensor [n; d]) (b : tensor [d]) : tensor [n; d] := fun j a => K j a + b a.

Lemma add_row_vjp {n d} (K : tensor [n; d]) (b : tensor [d]) (ℓ : tensor [n; d] -> R) (dK : tensor [n; d]) :
  gradient ℓ (add_row K b) dK -> gradient (fun b => ℓ (add_row K b)) b (fun a => ∑ j < n, dK j a).
Proof.
  apply (backward (s := [d]) (add_row K) b (fun tB _ a => tB a)).
  - intros x t tB _ Ht j Hj a Ha. simpl. unfold add_row.
    eapply derive_eq; [exact (derive_plus (fun _ => K j a) (fun u => x u a) t _ _ (derive_const _ t) (Ht a Ha))|ring].
  - intro tB. simpl. rewrite sum_swap. apply sum_ext; intros a _. now rewrite sum_r.
Qed.

(** What sums to 0 is dK', the gradient of the turned keys. The bias of the keys, added before the turn, gets the sum
    of dK' turned back. *)
Theorem eq_var_rope_key_bias n_q n_k d_k d_v (M : mask) scale lay m θ pos (Q' : tensor [n_q; d_k]) (K : tensor [n_k; d_k])
    (b_K : tensor [d_k]) (V : tensor [n_k; d_v]) (B : tensor [n_q; n_k]) (ℓ : tensor [n_q; d_v] -> R)
    (dO : tensor [n_q; d_v]) :
  let K' := rotary lay m θ pos (add_row K b_K) in
  let P := weights M scale Q' K' B in
  let dP := dO × V^T in
  let dS := fun i j => P i j * (dP i j - ∑ k < n_k, P i k * dP i k) in
  let dK' := scale • (dS^T × Q') in
  (2 * m <= d_k)%nat ->
  gradient ℓ (attention M scale Q' K' V B) dO ->
  gradient (fun K' => ℓ (attention M scale Q' K' V B)) K' dK'
  /\ (forall a, ∑ j < n_k, dK' j a = 0)
  /\ gradient (fun b_K => ℓ (attention M scale Q' (rotary lay m θ pos (add_row K b_K)) V B)) b_K
       (fun a => ∑ j < n_k, turn lay m θ (- pos j) (dK' j) a).
Proof.
  intros K' P dP dS dK' Hm H.
  assert (HK : gradient (fun K' => ℓ (attention M scale Q' K' V B)) K' dK')
    by exact (eq_dK n_q n_k d_k d_v M scale Q' K' V B ℓ dO H).
  split; [exact HK|split].
  - intro a. unfold dK', scaled, matmul, transpose. rewrite <- sum_l, sum_swap, sum_0; [ring|].
    intros i _. transitivity ((∑ j < n_k, dS i j) * Q' i a); [symmetry; apply sum_r|].
    pose proof (centered_rows M (scores scale Q' K' B) dP i) as H0. unfold centered in H0. unfold dS, P, weights. rewrite H0. ring.
  - apply (add_row_vjp K b_K (fun K => ℓ (attention M scale Q' (rotary lay m θ pos K) V B))
      (rotary lay m θ (fun j => - pos j) dK')).
    exact (eq_var_rope_vjp n_k d_k lay m θ pos (add_row K b_K) (fun K' => ℓ (attention M scale Q' K' V B)) dK' Hm HK).
Qed.

(** The bias of the keys, added before the turn, may learn: one query (1, 0) at position 0 and two keys at positions 0
    and 1 whose values are 0 and 1, one pair of columns, θ = 1. The gradient of a bias on the keys is ((cos 1 − 1) / 4,
    −(sin 1) / 4). *)
Theorem rotary_key_bias_not_zero lay :
  let Q' : tensor [1; 2]%nat := fun _ a => if a =? 0 then 1 else 0 in
  let K : tensor [2; 2]%nat := fun _ _ => 0 in
  let V : tensor [2; 1]%nat := fun j _ => INR j in
  let B : tensor [1; 2]%nat := fun _ _ => 0 in
  let loss (b_K : tensor [2%nat]) := attention everything 1 Q' (rotary lay 1 (fun _ => 1) INR (add_row K b_K)) V B O O in
  gradient loss (fun _ => 0) (fun a => if a =? 0 then (cos 1 - 1) / 4 else - sin 1 / 4)
  /\ ~ gradient loss (fun _ => 0) (fun _ => 0).
Proof.
  intros Q' K V B loss.
  assert (H : gradient loss (fun _ => 0) (fun a => if a =? 0 then (cos 1 - 1) / 4 else - sin 1 / 4)).
  { pose proof (eq_var_rope_key_bias 1 2 2 1 everything 1 lay 1 (fun _ => 1) INR Q' K (fun _ => 0) V B
      (fun O => O 0%nat 0%nat) (fun _ _ => 1) ltac:(lia)) as G. cbv zeta in G.
    refine (gradient_ext _ _ _ _ _ (proj2 (proj2 (G _)))).
    - assert (E0 : forall p, p = 0%nat \/ p = 1%nat -> scores 1 Q' (rotary lay 1 (fun _ => 1) INR (add_row K (fun _ => 0))) B 0%nat p = 0).
      { intros p Hp. unfold scores, add, scaled, matmul, transpose, rotary, turn, add_row, K, B. simpl.
        destruct lay; simpl; ring. }
      assert (EP : forall p, p = 0%nat \/ p = 1%nat ->
        weights everything 1 Q' (rotary lay 1 (fun _ => 1) INR (add_row K (fun _ => 0))) B 0%nat p = 1 / 2).
      { intros p Hp. unfold weights, softmax, Z, E, everything. cbn [sum]. rewrite (E0 p Hp), (E0 0%nat), (E0 1%nat), exp_0 by auto. lra. }
      intros a Ha. assert (Ea : a = 0%nat \/ a = 1%nat) by lia.
      unfold turn, scaled, matmul, transpose. cbn [sum]. rewrite !(EP 0%nat), !(EP 1%nat) by auto.
      destruct lay, Ea as [-> | ->]; cbn -[cos sin INR]; rewrite !Rmult_1_r, ?cos_neg, ?sin_neg; simpl INR; rewrite ?cos_0, ?sin_0; unfold V; simpl INR; field.
    - intros x t tX Hx Ht. eapply derive_eq; [exact (Ht 0%nat ltac:(lia) 0%nat ltac:(lia))|]. simpl. now rewrite Rmult_1_l, !Rplus_0_l. }
  split; [exact H|]. intro H0. pose proof (gradient_unique (s := [2%nat]) _ _ _ _ (fun a => if a =? 1 then 1 else 0) H H0) as C.
  simpl in C. destruct (pre_sin_bound 1 0) as [S _]; [lra|lra|]. simpl Nat.mul in S. simpl Nat.add in S.
  replace (sin_approx 1 1) with (5 / 6) in S by (unfold sin_approx, sin_term; simpl; field). lra.
Qed.

(** ** The two layouts *)

(** Π puts the even ones of the first 2 m columns first, then the odd ones; Πᵀ puts them back. *)
Definition evens_first (m : nat) (x : nat -> R) : nat -> R := fun c =>
  if c <? 2 * m then if c <? m then x (c * 2)%nat else x ((c - m) * 2 + 1)%nat else x c.
Definition evens_back (m : nat) (x : nat -> R) : nat -> R := fun c =>
  if c <? 2 * m then if Nat.even c then x (c / 2)%nat else x (m + c / 2)%nat else x c.

(** The layout in halves is the same rotation in another order of the columns, the even ones first, and Πᵀ is that
    order's transpose. *)
Theorem eq_var_rope_half d m θ p (x y : tensor [d]) :
  (2 * m <= d)%nat ->
  equal (s := [d]) (turn half m θ p x) (evens_first m (turn interleaved m θ p (evens_back m x)))
  /\ ∑ c < d, x c * evens_first m y c = ∑ c < d, evens_back m x c * y c.
Proof.
  intro Hm.
  assert (B1 : forall z : nat -> R, forall l, (l < m)%nat -> evens_back m z (l * 2)%nat = z l).
  { intros z l Hl. pose proof (pair_col1 interleaved m l Hl) as P. pose proof (first_col1 interleaved m l Hl) as F. unfold pair_of, is_first, col1, col2 in P, F.
    unfold evens_back. rewrite P, F. destruct (Nat.ltb_spec (l * 2) (2 * m)); [reflexivity|lia]. }
  assert (B2 : forall z : nat -> R, forall l, (l < m)%nat -> evens_back m z (l * 2 + 1)%nat = z (m + l)%nat).
  { intros z l Hl. pose proof (pair_col2 interleaved m l Hl) as P. pose proof (first_col2 interleaved m l Hl) as F. unfold pair_of, is_first, col1, col2 in P, F.
    unfold evens_back. rewrite P, F. destruct (Nat.ltb_spec (l * 2 + 1) (2 * m)); [reflexivity|lia]. }
  split.
  - intros c Hc. simpl. unfold evens_first. destruct (Nat.ltb_spec c (2 * m)) as [H2|H2].
    + destruct (Nat.ltb_spec c m) as [H1|H1].
      * pose proof (turn_col1 half m θ p x c H1) as L. pose proof (turn_col1 interleaved m θ p (evens_back m x) c H1) as G.
        unfold col1, col2 in L, G. now rewrite L, G, B1, B2.
      * assert (H : (c - m < m)%nat) by lia.
        pose proof (turn_col2 half m θ p x _ H) as L. pose proof (turn_col2 interleaved m θ p (evens_back m x) _ H) as G.
        unfold col1, col2 in L, G. replace (m + (c - m))%nat with c in L by lia. rewrite L, G, B1, B2 by exact H.
        now replace (m + (c - m))%nat with c by lia.
    + unfold turn, evens_back. now rewrite (proj2 (Nat.ltb_ge c (2 * m)) H2).
  - simpl. rewrite (sum_pairs half m d) by exact Hm. rewrite (sum_pairs interleaved m d) by exact Hm. simpl col1; simpl col2. f_equal.
    + apply sum_ext; intros l Hl. rewrite B1, B2 by exact Hl. unfold evens_first.
      destruct (Nat.ltb_spec l (2 * m)); [|lia]. destruct (Nat.ltb_spec l m); [|lia].
      destruct (Nat.ltb_spec (m + l) (2 * m)); [|lia]. destruct (Nat.ltb_spec (m + l) m); [lia|].
      now replace (m + l - m)%nat with l by lia.
    + apply sum_ext; intros c _. unfold evens_first, evens_back.
      now rewrite (proj2 (Nat.ltb_ge _ _) (Nat.le_add_r (2 * m) c)).
Qed.
