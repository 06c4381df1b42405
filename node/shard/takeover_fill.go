package shard

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/starling-kv/starling/avlstar"
	"github.com/starling-kv/starling/dsm"
)

// page is consecutive stubs that are asked for at once.
type page []avlstar.Subtree

// pages returns the next stubs of the range that end above a key, in groups of about pageBytes.
func (t *takeover) pages(from []byte) (pages []page) {
	var last page
	size := uint64(0)
	for s := range t.partial.Version().Stubs(from) {
		if t.p.keys.After != nil && bytes.Compare(s.First, t.p.keys.After) >= 0 {
			break
		}
		if !t.p.keys.Contains(s.First) {
			continue
		}
		if len(last) > 0 && size+s.Bytes > pageBytes {
			if pages = append(pages, last); len(pages) == pagesAtOnce {
				return pages
			}
			last, size = nil, 0
		}
		last, size = append(last, s), size+s.Bytes
	}
	if len(last) > 0 {
		pages = append(pages, last)
	}
	return pages
}

// wants returns what opens a page: a large subtree is divided first, by the way to its least key.
func (t *takeover) wants(p page) []dsm.Want {
	if len(p) == 1 && p[0].Bytes > bagBytes/2 {
		return []dsm.Want{{Key: p[0].First}}
	}
	after := p[len(p)-1].After
	if t.p.keys.After != nil && (after == nil || bytes.Compare(after, t.p.keys.After) > 0) {
		after = t.p.keys.After
	}
	return []dsm.Want{{Key: p[0].First, Range: true, After: after}}
}

// reuse takes over what earlier attempts have left, and what the range has of an older height: as
// much of both as has the same hashes at this height. Nothing is fetched.
func (t *takeover) reuse(ctx context.Context) error {
	var from []*avlstar.Partial
	if t.p.left != nil {
		from = append(from, t.p.left)
	}
	if t.p.replica != nil { // only who takes the range over changes it
		if old, ok := t.p.replica.At(t.p.replica.Claim().Newest); ok {
			defer old.Release()
			from = append(from, old)
		}
	}
	for _, old := range from {
		if err := t.reuseFrom(ctx, old); err != nil {
			return err
		}
	}
	return nil
}

// reuseFrom grafts what a tree of another height has, page by page.
func (t *takeover) reuseFrom(ctx context.Context, old *avlstar.Partial) error {
	for pages := t.pages(t.p.keys.First); len(pages) > 0 && ctx.Err() == nil; {
		last := pages[len(pages)-1]
		after := bytes.Clone(last[len(last)-1].After) // the keys go with the version
		var bags []*avlstar.Bag
		for _, p := range pages {
			w := t.wants(p)[0]
			b, err := old.Bag([]avlstar.Want{{Key: w.Key, Range: w.Range, After: w.After}}, avlstar.Below{MaxBytes: 2 * bagBytes, Partly: true})
			if errors.Is(err, avlstar.ErrBagTooLarge) {
				continue // it is fetched
			} else if err != nil {
				return err
			}
			bag, err := avlstar.DecodeBag(b)
			if err != nil {
				return err
			}
			bags = append(bags, bag)
		}
		next, _, err := t.partial.Graft(bags...)
		if err != nil {
			return err
		}
		t.partial.Release()
		t.partial = next
		if after == nil {
			return nil
		}
		pages = t.pages(after)
	}
	return ctx.Err()
}

// fill fetches all leaves of the range.
func (t *takeover) fill(ctx context.Context) error {
	for {
		pages := t.pages(t.p.keys.First)
		if len(pages) == 0 {
			return nil
		}
		bags, failed := t.bags(ctx, pages)
		next, _, err := t.partial.Graft(bags...) // also what came before something failed
		if err != nil {
			return err
		}
		t.partial.Release()
		t.partial = next
		if failed != nil {
			return failed
		}
		if time.Since(t.told) >= progressEvery {
			t.told = time.Now()
			rate := float64(t.bytes) / time.Since(t.began).Seconds()
			t.n.log.Info("Taking a range over", "range", t.p.String(), "height", t.height, "bytes", t.bytes, "rate", humanize.IBytes(uint64(rate))+"/s")
		}
	}
}

// bags fetches pages, several at a time. With an error, it returns those that came.
func (t *takeover) bags(ctx context.Context, pages []page) ([]*avlstar.Bag, error) {
	bags, errs := make([]*avlstar.Bag, len(pages)), make([]error, len(pages))
	var all sync.WaitGroup
	places := make(chan struct{}, pageWorkers)
	for i, p := range pages {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			bags[i], errs[i] = t.bag(ctx, i, p)
		})
	}
	all.Wait()
	bags = slices.DeleteFunc(bags, func(b *avlstar.Bag) bool { return b == nil })
	return bags, cmp.Or(errs...)
}

func (t *takeover) bag(ctx context.Context, k int, p page) (bag *avlstar.Bag, err error) {
	stubs := make([]avlstar.Stub, len(p))
	for i, s := range p {
		stubs[i] = s.Stub
	}
	take := func(b []byte) (err error) {
		if bag, err = proofOf(b, stubs); err == nil {
			t.mu.Lock()
			t.bytes += len(b)
			t.mu.Unlock()
		}
		return err
	}
	err = t.fetch(ctx, k, t.wants(p), stubs, take)
	if errors.Is(err, errSplit) { // the way to one key always has room
		stubs = stubs[:1]
		err = t.fetch(ctx, k, []dsm.Want{{Key: p[0].First}}, stubs, take)
	}
	return bag, err
}
