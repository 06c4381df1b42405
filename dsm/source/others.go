package source

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
	"github.com/starling-kv/starling/dsm/ask"
	"github.com/starling-kv/starling/transport"
)

// Validators hold what the last blocks took: a block that is decided was executed by honest ones of
// more than a third of the power. So they, and nodes in local mode, can help where no replica of a
// range can:
//
//	replicas  ├──── nothing within 2 × Slow, or all have failed
//	others                             ├── two ──────┬──────┬────── one more each Slow, until something comes
//
// They answer with what they have. The rest stays stubs, so an answer that omits a way is no lie of
// theirs, and two that have half of it each bring all of it.

const (
	// otherNodes names all of them in metrics: anybody can have as many names as he likes.
	otherNodes dsm.Node = "others"
	// othersAfter is how many times ask.Policy.Slow a range is waited for before others are asked
	// beside it.
	othersAfter = 2
	// othersAtOnce is how many are asked at first, and mostOthers how many for one range in all.
	othersAtOnce, mostOthers = 2, 8
)

// others are those of Options.Others that are asked.
type others struct {
	s  *Source
	mu struct {
		sync.Mutex
		avoided map[transport.ID]avoided
		// needed are the ranges of which others brought what no replica did, last time: they are
		// asked at once then, until a replica answers.
		needed map[int]bool
		useful transport.ID // who has brought something last is asked first
	}
}

func (o *others) helped(id transport.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.useful = id
}

func (o *others) isNeeded(shard int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.needed[shard]
}

func (o *others) setNeeded(shard int, needed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.needed[shard] = needed
}

// avoided is a node that has lied.
type avoided struct {
	until time.Time
	next  time.Duration // for which it is avoided after another lie
}

func (o *others) begin(s *Source) {
	o.s = s
	o.mu.avoided, o.mu.needed = map[transport.ID]avoided{}, map[int]bool{}
}

// all returns those that have not lied lately.
func (o *others) all() (conns []transport.Conn) {
	if o.s.o.Others == nil {
		return nil
	}
	all, now := o.s.o.Others(), time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, c := range all {
		switch id := c.Remote().ID; {
		case now.Before(o.mu.avoided[id].until):
		case id == o.mu.useful:
			conns = slices.Insert(conns, 0, c)
		default:
			conns = append(conns, c)
		}
	}
	return conns
}

// judged takes note of a lie; "": it is none.
func (o *others) judged(id transport.ID, r dsm.Range, v ask.Verdict) {
	if v == "" || v == ask.Omits {
		return
	}
	policy, now := o.s.o.Ask, time.Now()
	o.mu.Lock()
	for id, a := range o.mu.avoided { // those that were forgiven long ago
		if now.Sub(a.until) > policy.MaxAvoid {
			delete(o.mu.avoided, id)
		}
	}
	a := o.mu.avoided[id]
	a.next = max(a.next, policy.Avoid)
	a.until, a.next = now.Add(a.next), min(2*a.next, policy.MaxAvoid)
	o.mu.avoided[id] = a
	o.mu.Unlock()
	o.s.o.Metrics.lied(otherNodes, r, v)
	o.s.o.Logger.Error("a node that is no storage node sent what no honest one sends; it is not asked for a while",
		"node", id, "range", r, "reason", v, "for", a.until.Sub(now))
	o.s.liars.add(otherNodes, r, v)
}

// after waits for d, or until sooner is closed. It returns false if ctx ends first.
func after(ctx context.Context, d time.Duration, sooner <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-sooner:
	case <-ctx.Done():
		return false
	}
	return true
}

// others asks some nodes at the height itself, until something has come and minGrace is over, all
// have answered, or ctx ends.
func (f *fetching) others(ctx context.Context) []*avlstar.Bag {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g := gathering{something: make(chan struct{})}
	var all sync.WaitGroup
	conns := f.s.others.all()
	for i, conn := range conns[:min(len(conns), mostOthers)] {
		if i >= othersAtOnce {
			after(ctx, f.s.o.Ask.Slow, g.something)
		}
		if ctx.Err() != nil || g.begun() {
			break
		}
		all.Go(func() {
			if bags := f.other(ctx, conn); len(bags) > 0 {
				f.s.others.helped(conn.Remote().ID)
				g.add(bags, nil)
				f.began()
				for _, b := range bags {
					f.took(b.Bytes())
				}
			}
		})
	}
	g.settle(ctx, cancel, &all, func() time.Duration { return minGrace })
	return g.bags
}

// other asks one node for all that is wanted of the range.
func (f *fetching) other(ctx context.Context, conn transport.Conn) (bags []*avlstar.Bag) {
	for _, run := range dsm.Split(f.wants, f.s.o.Ask.Wants, len(f.held)) {
		bag, ok := f.part(ctx, conn, run)
		if bag != nil {
			bags = append(bags, bag)
		}
		if !ok {
			break
		}
	}
	return bags
}

// part asks one node for some wants. ok is false if it is not to be asked for the others.
func (f *fetching) part(ctx context.Context, conn transport.Conn, wants []dsm.Want) (bag *avlstar.Bag, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, f.s.o.Ask.GiveUp)
	defer cancel()
	body, err := dsm.Witness{Height: f.height, Depth: f.depth, MaxBytes: maxBag, Held: f.held, Wants: wants}.Encode()
	if err != nil {
		return nil, false
	}
	b, err := conn.Call(ctx, transport.Call{Method: transport.Method(dsm.MethodWitness), Body: body, Max: maxBag})
	f.s.o.Metrics.called(otherNodes, dsm.MethodWitness, len(body), len(b), err)
	q := &question{depth: f.depth, held: f.held, most: maxBag}
	got := q.judge(askOf(wants), b, err)
	if refuted, is := got.event.(ask.Refuted); is {
		f.s.others.judged(conn.Remote().ID, f.s.o.Ranges.Shard(f.shard).Range, refuted.Verdict)
		return got.bag, refuted.Verdict == ask.Omits
	}
	return got.bag, err == nil
}
