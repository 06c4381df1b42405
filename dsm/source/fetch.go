package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

const (
	// maxBag limits an answer, in bytes. A storage node's own limit can be lower.
	maxBag = 8 << 20
	// heardWait is how long a fetch waits for the first claim of a range.
	heardWait = time.Second
	// minGrace is how long a fetch that has something waits for the rest, at least.
	minGrace = 20 * time.Millisecond
	// mostHeights is how many heights a range is asked at for one fetch.
	mostHeights = 3
	// mostSteps is how many neighbours of a wanted key are tried, and mostKeys of how many wants.
	mostSteps, mostKeys = 64, 64
)

// Fetch implements app.Source. It asks each range at the newest height that its replicas claim, up
// to height. It returns when all has come, when below.MaxBytes have or, once something has, after
// as long again as that took. The error says why not all came: it wraps ErrUnserved, ErrTooLarge,
// ErrClosed or the error of ctx.
func (s *Source) Fetch(ctx context.Context, height int64, wants []avlstar.Want, below avlstar.Below) ([]*avlstar.Bag, error) {
	parts, err := s.route(wants)
	if err != nil {
		return nil, err
	}
	if len(below.Held) == 0 && below.Depth >= math.MaxUint8 {
		return nil, nil // it has all of it
	}
	ctx, cancel := s.alive(ctx)
	defer cancel()
	g := gathering{began: time.Now(), something: make(chan struct{})}
	var came atomic.Int64
	took := func(bytes int) {
		if came.Add(int64(bytes)) >= int64(below.MaxBytes) && below.MaxBytes > 0 {
			cancel()
		}
	}
	var all sync.WaitGroup
	held := s.held(below, parts)
	for i, p := range parts {
		all.Go(func() {
			f := fetching{
				s: s, shard: p.Shard, height: height, wants: p.Wants, held: held[i], depth: uint8(min(below.Depth, math.MaxUint8)), began: g.begin, took: took,
			}
			bags, err := f.run(ctx)
			f.note(len(bags) > 0 || err == nil)
			g.add(bags, err)
		})
	}
	// What is still under way is not waited for; it ends at once.
	g.settle(ctx, cancel, &all, func() time.Duration { return max(time.Since(g.began), minGrace) })
	return g.result()
}

// gathering is what came of a fetch so far.
type gathering struct {
	began     time.Time
	something chan struct{} // closed when the first bag is there
	once      sync.Once

	mu   sync.Mutex
	bags []*avlstar.Bag
	errs []error
}

func (g *gathering) begin() { g.once.Do(func() { close(g.something) }) }

// settle waits until all have ended, or ctx, or grace is over after the first bag. It then ends the
// others.
func (g *gathering) settle(ctx context.Context, cancel context.CancelFunc, all *sync.WaitGroup, grace func() time.Duration) {
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done():
	case <-g.something:
		after(ctx, grace(), ended)
	}
	cancel()
	<-ended
}

// begun reports whether the first bag is there.
func (g *gathering) begun() bool {
	select {
	case <-g.something:
		return true
	default:
		return false
	}
}

func (g *gathering) add(bags []*avlstar.Bag, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.bags = append(g.bags, bags...)
	if err != nil {
		g.errs = append(g.errs, err)
	}
	if len(bags) > 0 {
		g.begin()
	}
}

func (g *gathering) result() ([]*avlstar.Bag, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := errors.Join(g.errs...); err != nil {
		return g.bags, fmt.Errorf("source: %w", err)
	}
	return g.bags, nil
}

// route gives each want to the range that has it. The least key above another one may be the first
// of the next range: the way to that is wanted, too.
func (s *Source) route(wants []avlstar.Want) ([]dsm.Part, error) {
	all := make([]dsm.Want, 0, len(wants))
	for _, w := range wants {
		all = append(all, dsm.Want(w))
		if !w.Next {
			continue
		}
		if after := s.o.Ranges.Shard(s.o.Ranges.Index(dsm.Want(w).Least())).Range.After; after != nil {
			all = append(all, dsm.Want{Key: after}, dsm.Want{Key: after, Next: true})
		}
	}
	return s.o.Ranges.Route(all)
}

// held returns for each part, which ascend, the hashes of the stubs to ask below, ascending: those
// that may lie in its range, or all where none does. A request has room for dsm.MaxHeld: of more
// than that, other ones each time, so that the caller's next call asks for the rest.
func (s *Source) held(below avlstar.Below, parts []dsm.Part) [][][32]byte {
	held := make([][][32]byte, len(parts))
	add := func(i int, h avlstar.Hash) {
		if len(held[i]) < dsm.MaxHeld { // the order of a map is not the same twice
			held[i] = append(held[i], h)
		}
	}
	for h, span := range below.Held {
		from, to := s.o.Ranges.Index(span.From), s.o.Ranges.Len()-1
		if span.To != nil {
			to = s.o.Ranges.Index(span.To)
		}
		i, _ := slices.BinarySearchFunc(parts, from, func(p dsm.Part, shard int) int { return p.Shard - shard })
		for ; i < len(parts) && parts[i].Shard <= to; i++ {
			add(i, h)
		}
	}
	for i := range held {
		if len(held[i]) == 0 {
			for h := range below.Held {
				add(i, h)
			}
		}
		slices.SortFunc(held[i], compareHashes)
	}
	return held
}

// fetching is what one range is asked for one Fetch.
type fetching struct {
	s      *Source
	shard  int
	height int64
	wants  []dsm.Want
	held   [][32]byte
	depth  uint8
	began  func()          // is called when something has come
	took   func(bytes int) // is called for each bag
}

// note keeps note of whether the state is anywhere: see Gone.
func (f *fetching) note(came bool) {
	oldest, is := f.s.known.beyond(f.shard, f.height)
	f.s.gone.found(goneKey{f.shard, f.height}, f.s.o.Ranges.Shard(f.shard).Range, oldest, is && !came)
}

// run asks the replicas, and the others where these bring nothing, or nothing soon.
func (f *fetching) run(ctx context.Context) ([]*avlstar.Bag, error) {
	if f.s.o.Others == nil {
		return f.replicas(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	failed := make(chan struct{})
	var more []*avlstar.Bag
	var beside sync.WaitGroup
	wait := othersAfter * f.s.o.Ask.Slow
	if f.s.others.isNeeded(f.shard) {
		wait = 0
	}
	beside.Go(func() {
		if after(ctx, wait, failed) {
			if more = f.others(ctx); len(more) > 0 {
				cancel() // replicas that were silent so long
			}
		}
	})
	bags, err := f.replicas(ctx)
	if len(bags) > 0 || err == nil {
		cancel()
	} else {
		close(failed)
	}
	beside.Wait()
	if len(bags) > 0 {
		f.s.others.setNeeded(f.shard, false)
	} else if len(more) > 0 {
		f.s.others.setNeeded(f.shard, true)
		err = nil
	}
	return append(bags, more...), err
}

// replicas asks the replicas, at each of some heights.
func (f *fetching) replicas(ctx context.Context) ([]*avlstar.Bag, error) {
	var errs []error
	for _, height := range f.heights(ctx) {
		bags, err := f.at(ctx, height, f.wants)
		if len(bags) > 0 || err == nil || ctx.Err() != nil {
			return bags, err
		}
		if errors.Is(err, errNothing) {
			if bags, err := f.elsewhere(ctx, height); len(bags) > 0 || err != nil {
				return bags, err
			}
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// heights returns at which heights the range is asked, in this order.
func (f *fetching) heights(ctx context.Context) []int64 {
	known := f.s.known
	hs, ok := known.heights(f.shard, f.height)
	if !ok {
		ctx, cancel := context.WithTimeout(ctx, heardWait)
		defer cancel()
		// Without any claim the height itself is asked for.
		_ = known.wait(ctx, func() bool { //nolint:errcheck // the time is over
			hs, ok = known.heights(f.shard, f.height)
			return ok
		})
	}
	if !ok {
		return []int64{f.height}
	}
	return hs[:min(len(hs), mostHeights)]
}

// at asks the replicas at one height.
func (f *fetching) at(ctx context.Context, height int64, wants []dsm.Want) ([]*avlstar.Bag, error) {
	q := &question{shard: f.shard, height: height, depth: f.depth, held: f.held, most: maxBag, took: f.took}
	return f.s.asking.ask(ctx, q, wants, f.began)
}

// elsewhere asks for the neighbours of the keys that are wanted: the way to a key leads into
// another subtree at an older height if its neighbours, or itself, were deleted since. The leaf
// before it is in the subtree that is wanted, unless that one was deleted, too: then the one before
// that is. At the left edge of the tree, where nothing is before, it is the leaf behind.
func (f *fetching) elsewhere(ctx context.Context, height int64) ([]*avlstar.Bag, error) {
	for _, to := range []direction{before, behind} {
		keys := f.keys()
		for range mostSteps {
			var wants []dsm.Want
			for _, k := range keys {
				if w, ok := to.next(k); ok {
					wants = append(wants, w)
				}
			}
			if len(wants) == 0 {
				break
			}
			f.s.o.Metrics.Elsewhere.Inc()
			parts, err := f.s.o.Ranges.Route(wants) // perhaps it is in another range
			if err != nil {
				return nil, err
			}
			bags, err := f.all(ctx, parts, question{height: height, depth: f.depth, held: f.held, took: f.took})
			if len(bags) > 0 || err != nil && !errors.Is(err, errNothing) {
				return bags, err
			}
			if keys = f.leaves(ctx, height, keys, parts, to); len(keys) == 0 {
				break
			}
		}
	}
	return nil, nil
}

// direction is where neighbours of keys are looked for.
type direction struct {
	next func(key []byte) (dsm.Want, bool) // the way to the neighbour
	leaf func(b *avlstar.Bag, key []byte) ([]byte, bool)
}

var (
	before = direction{func(key []byte) (dsm.Want, bool) {
		below := justBelow(key)
		return dsm.Want{Key: below}, below != nil
	}, (*avlstar.Bag).LeafBelow}
	behind = direction{func(key []byte) (dsm.Want, bool) {
		return dsm.Want{Key: key, Next: true}, len(key) < dsm.MaxKeyBytes
	}, (*avlstar.Bag).LeafAbove}
)

// all asks several ranges the same, one after another.
func (f *fetching) all(ctx context.Context, parts []dsm.Part, of question) (bags []*avlstar.Bag, err error) {
	for _, p := range parts {
		q := &question{shard: p.Shard, height: of.height, depth: of.depth, held: of.held, most: maxBag, took: of.took}
		some, why := f.s.asking.ask(ctx, q, p.Wants, f.began)
		bags = append(bags, some...)
		if why != nil {
			err = why
		}
	}
	return bags, err
}

// keys returns the keys whose ways may lead elsewhere.
func (f *fetching) keys() (keys [][]byte) {
	for _, w := range f.wants {
		if len(keys) < mostKeys {
			keys = append(keys, w.Key)
		}
	}
	return keys
}

// leaves returns the keys of the leaves next to keys, at a height; parts lead there.
func (f *fetching) leaves(ctx context.Context, height int64, keys [][]byte, parts []dsm.Part, to direction) (next [][]byte) {
	ways := *f
	ways.began = func() {} // nothing that was asked for
	bags, err := ways.all(ctx, parts, question{height: height})
	if err != nil {
		return nil
	}
	for _, k := range keys {
		for _, b := range bags {
			if leaf, ok := to.leaf(b, k); ok {
				next = append(next, bytes.Clone(leaf))
				break
			}
		}
	}
	return next
}

// justBelow returns the greatest possible key below key, nil if there is none: the way to it leads
// to the greatest key of the tree that is less than key.
func justBelow(key []byte) []byte {
	last := len(key) - 1
	if last < 0 || last == 0 && key[0] == 0 {
		return nil
	}
	if key[last] == 0 {
		return bytes.Clone(key[:last])
	}
	before := make([]byte, dsm.MaxKeyBytes)
	for i := copy(before, key); i < len(before); i++ {
		before[i] = 0xff
	}
	before[last]--
	return before
}
