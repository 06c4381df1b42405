package dsmbench

import (
	"context"
	"errors"
	"slices"

	ics23 "github.com/cosmos/ics23/go"
	"github.com/starling-kv/starling/app"
	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/bench/harness"
)

// imageBytes is the length of the bytes whose hash is an inner node's hash (docs/spec/tree.md),
// without the node's key, because they contain only the key's hash.
const imageBytes = 115

func asMissing(err error) (*avlstar.MissingNodeError, bool) {
	var missing *avlstar.MissingNodeError
	return missing, errors.As(err, &missing)
}

// chain is a full tree to which blocks are applied.
type chain struct {
	g      *generator
	recent []at // recent states, newest last
	keep   int  // maximum length of recent
	bytes  uint64
}

// at is the state after a block.
type at struct {
	height int64
	*avlstar.Version
	upper *avlstar.Partial // upper tree to depth r, or nil
}

func (c *chain) newest() at { return c.recent[len(c.recent)-1] }

// advance applies the next block.
func (c *chain) advance(b block, upper func(*avlstar.Version) (*avlstar.Partial, error)) error {
	before := c.newest()
	v, err := before.Apply(b.changes)
	if err != nil {
		return err
	}
	next := at{height: before.height + 1, Version: v}
	if upper != nil {
		if next.upper, err = upper(v); err != nil {
			return err
		}
	}
	c.recent = append(c.recent, next)
	for len(c.recent) > c.keep {
		c.recent[0].release()
		c.recent = slices.Delete(c.recent, 0, 1)
	}
	return nil
}

func (a at) release() {
	a.Release()
	if a.upper != nil {
		a.upper.Release()
	}
}

// sizer measures multiproofs and memory.
type sizer struct {
	o         Options
	chain     *chain
	receivers []*receiver // the first has the run's r
	rows      []DepthRow
	ages      []AgeRow
	progress  *harness.Progress

	txs, raw, cold int
}

// measure executes blocks until the trees have reached their usual size, and then the measured
// blocks.
func (s *sizer) measure(ctx context.Context, deletions bool, warm int) (*Sizes, error) {
	s.txs, s.raw, s.cold = 0, 0, 0
	s.rows, s.ages = make([]DepthRow, len(s.receivers)), nil
	for _, a := range s.o.ages() {
		s.ages = append(s.ages, AgeRow{Age: a})
	}
	for n := range warm + s.o.Blocks {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := s.block(s.chain.g.next(deletions), n >= warm, deletions); err != nil {
			return nil, err
		}
		s.progress.Add(1)
	}
	for i, r := range s.receivers {
		if err := r.check(s.chain.newest().Version); err != nil {
			return nil, err
		}
		s.rows[i].Depth, s.rows[i].MemoryBytes, s.rows[i].UpperBytes = r.retain, r.bytes(), r.upper
		s.rows[i].MultiproofBytesTx = harness.Ratio(s.rows[i].MultiproofBytesTx, float64(s.txs))
		s.rows[i].MemoryRatio = harness.Ratio(float64(s.rows[i].MemoryBytes), float64(s.chain.bytes))
	}
	for i := range s.ages {
		s.ages[i].finish()
	}
	return &Sizes{
		RawBytesTx: harness.Ratio(float64(s.raw), float64(s.txs)), ColdBytesTx: harness.Ratio(float64(s.cold), float64(s.txs)),
		Depths: s.rows, Ages: s.ages,
	}, nil
}

func (s *sizer) block(b block, count, deletions bool) error {
	before := s.chain.newest()
	if count {
		s.txs += len(b.transfers)
		if err := s.full(before.Version, &b); err != nil {
			return err
		}
		if err := s.staleness(&b); err != nil {
			return err
		}
	}
	for i, r := range s.receivers {
		n, err := r.fetch(before.Version, b.wants(true))
		if err != nil {
			return err
		}
		more, err := r.apply(before.Version, b.changes)
		if err != nil {
			return err
		}
		if count {
			s.rows[i].MultiproofBytesTx += float64(n + more)
		}
	}
	return s.chain.advance(b, s.upper)
}

// upper returns the tree to depth r, with which staleness finds paths that changed below it.
func (s *sizer) upper(v *avlstar.Version) (*avlstar.Partial, error) {
	p, _, err := upperTree(v, s.o.Retain)
	return p, err
}

// full adds the size of witnesses for a receiver without any nodes: the full paths for each
// transaction, as in the paper, and one multiproof for the block.
func (s *sizer) full(v *avlstar.Version, b *block) error {
	var wants []avlstar.Want
	wants = append(wants, b.wants(true)...)
	for i := range b.transfers {
		t := &b.transfers[i]
		nonce := app.NonceKey(s.chain.g.account(t.signer))
		wants = append(wants, avlstar.Want{Key: nonce})
		for _, key := range [][]byte{t.keys[0], t.keys[1], nonce} {
			n, err := rawBytes(v, key)
			if err != nil {
				return err
			}
			s.raw += n
		}
	}
	multiproof, err := v.Multiproof(wants, avlstar.Below{})
	s.cold += len(multiproof)
	return err
}

// rawBytes returns the length of the path to a key: the images of its inner nodes with their keys,
// and the leaf. It is 0 for an absent key.
func rawBytes(v *avlstar.Version, key []byte) (int, error) {
	value, ok, err := v.View(key)
	if err != nil || !ok {
		return 0, err
	}
	proof, err := v.Prove(key)
	if err != nil {
		return 0, err
	}
	var p ics23.CommitmentProof
	if err := p.Unmarshal(proof.State); err != nil {
		return 0, err
	}
	return len(p.GetExist().GetPath())*(imageBytes+keyBytes) + int(avlstar.RecordBytes(len(key), len(value))), nil
}

// staleness checks multiproofs made from older states against the current block. It counts the
// paths that the receiver cannot use although the key existed, and the transactions whose paths
// have changed since.
func (s *sizer) staleness(b *block) error {
	p := s.receivers[0].p
	now := s.chain.newest()
	for i := range s.ages {
		row := &s.ages[i]
		if row.Age >= len(s.chain.recent) {
			continue
		}
		old := s.chain.recent[len(s.chain.recent)-1-row.Age]
		var wants []avlstar.Want
		for _, w := range b.wants(false) {
			if has, err := old.Has(w.Key); err != nil {
				return err
			} else if has { // skip accounts created later: no old multiproof has them
				wants = append(wants, avlstar.Want{Key: w.Key})
			}
		}
		// Less depth than r by two, because rotations lift stubs.
		encoded, err := old.Multiproof(wants, avlstar.Below{Depth: max(0, s.o.Retain-2)})
		if err != nil {
			return err
		}
		multiproof, err := avlstar.DecodeMultiproof(encoded)
		if err != nil {
			return err
		}
		next, done, err := p.Graft(multiproof)
		if err != nil {
			return err
		}
		lacking, _ := next.Version().Missing(wants)
		next.Release()
		row.Ways += len(wants)
		row.missed += len(lacking)
		row.dropped += done.Stale
		for j := range b.transfers {
			t := &b.transfers[j]
			row.txs++
			if changed(old.upper, now.upper, t.keys[0]) || changed(old.upper, now.upper, t.keys[1]) {
				row.stale++
			}
		}
	}
	return nil
}

// changed reports whether the path to a key has changed below two upper trees of the same depth.
func changed(old, now *avlstar.Partial, key []byte) bool {
	wants := []avlstar.Want{{Key: key}}
	_, before := old.Version().Missing(wants)
	_, after := now.Version().Missing(wants)
	for h := range before {
		if _, same := after[h]; !same {
			return true
		}
	}
	return len(before) != len(after)
}

func (r *AgeRow) finish() {
	r.MissRate = harness.Ratio(float64(r.missed), float64(r.Ways))
	r.StaleRate = harness.Ratio(float64(r.stale), float64(r.txs))
}

// runSizes measures both workloads on one chain.
func (r *runner) runSizes(ctx context.Context) error {
	depths := []int{r.o.Retain}
	for _, d := range r.o.Depths {
		if !slices.Contains(depths, d) {
			depths = append(depths, d)
		}
	}
	s := &sizer{o: r.o, chain: r.chain, progress: r.progress}
	for _, d := range depths {
		one, err := newReceiver(r.chain.newest().Version, d, r.o.Window)
		if err != nil {
			return err
		}
		s.receivers = append(s.receivers, one)
	}
	defer func() {
		for _, one := range s.receivers {
			one.p.Release()
		}
	}()
	var err error
	r.chain.recent[0].upper, err = s.upper(r.chain.newest().Version)
	if err != nil {
		return err
	}
	r.progress.Begin("multiproofs", "blocks", r.o.warmUp()+r.o.Window+2*r.o.Blocks)
	r.progress.Working("transfers")
	if r.result.Transfers.Sizes, err = s.measure(ctx, false, r.o.warmUp()); err != nil {
		return err
	}
	r.progress.Working("with deletions")
	if r.result.Deletions.Sizes, err = s.measure(ctx, true, r.o.Window); err != nil {
		return err
	}
	return r.runStale(ctx, slices.Sorted(slices.Values(depths)))
}
