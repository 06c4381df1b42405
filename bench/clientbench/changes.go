package clientbench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// changes writes keys in turn, at a rate. The value of the n-th change of all is n.
type changes struct {
	n    *node
	keys int
	inTx int
	rate int // a second
	next int
	last *client.Sent
}

func (c *changes) value(n int) []byte { return fmt.Appendf(nil, "%064d", n) }

// number is the inverse of value.
func number(value []byte) (int, error) { return strconv.Atoi(string(value)) }

// write sends changes until writing ends; those that are late are sent at once.
func (c *changes) write(ctx, writing context.Context) (err error) {
	every := time.Duration(c.inTx) * time.Second / time.Duration(c.rate)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for due := time.Now(); ; due = due.Add(every) {
		timer.Reset(max(time.Until(due), 0))
		select {
		case <-timer.C:
		case <-writing.Done():
			return ctx.Err()
		}
		if err := c.one(ctx); err != nil {
			return err
		}
	}
}

// one sends the next transaction.
func (c *changes) one(ctx context.Context) (err error) {
	puts := make([]tx.Operation, c.inTx)
	for i := range puts {
		puts[i] = tx.NewPut(key((c.next+i)%c.keys), c.value(c.next+i))
	}
	if c.last, err = c.n.writer.Send(ctx, puts...); err == nil {
		c.next += len(puts)
	}
	return err
}

// settle waits until all that was sent is in blocks. Nonces are in order, so the last one shows it.
func (c *changes) settle(ctx context.Context) error {
	if c.last == nil {
		return nil
	}
	_, err := c.last.Wait(ctx)
	return err
}

// measured is the state of a node at a time.
type measured struct {
	at     time.Time
	height int64
	cpu    float64 // seconds since its start
	err    error
}

func (n *node) look(ctx context.Context) (m measured) {
	h := n.validators[0]
	m.at = time.Now()
	status, err := h.Status(ctx)
	if err != nil {
		m.err = err
		return m
	}
	values, err := h.Scrape(ctx)
	m.height, m.cpu, m.err = status.Height, values["process_cpu_seconds_total"], err
	return m
}

// intervals are the times between blocks from one height to another, by their headers, in ms. With
// one validator that of a header is when it signed the block before: so they are of whole rounds of
// consensus, with the execution of a block and the pause after it.
func (n *node) intervals(ctx context.Context, from, to int64) (list []float64, err error) {
	rpc, err := client.NewHTTP(n.validators[0].RPC())
	if err != nil {
		return nil, err
	}
	var last time.Time
	for height := from; height <= to; height++ {
		header, err := rpc.Header(ctx, &height)
		if err != nil {
			return nil, err
		}
		if !last.IsZero() {
			list = append(list, float64(header.Header.Time.Sub(last).Microseconds())/1e3)
		}
		last = header.Header.Time
	}
	return list, nil
}
