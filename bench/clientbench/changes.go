package clientbench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// changes writes to the keys in turn, at a fixed rate. The value of change n is n.
type changes struct {
	n    *node
	keys int
	inTx int
	rate int // per second
	next int
	last *client.Sent
}

func (c *changes) value(n int) []byte { return fmt.Appendf(nil, "%064d", n) }

// number is the inverse of value.
func number(value []byte) (int, error) { return strconv.Atoi(string(value)) }

// write sends changes until writing ends. A change that is behind schedule is sent at once.
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
		puts[i] = tx.NewPut(Key((c.next+i)%c.keys), c.value(c.next+i))
	}
	if c.last, err = c.n.writer.Send(ctx, puts...); err == nil {
		c.next += len(puts)
	}
	return err
}

// settle waits until everything sent is in a block. Nonces are in order, so waiting for the last
// transaction is enough.
func (c *changes) settle(ctx context.Context) error {
	if c.last == nil {
		return nil
	}
	_, err := c.last.Wait(ctx)
	return err
}

// measured is a sample of a node's state.
type measured struct {
	at     time.Time
	height int64
	cpu    float64 // CPU seconds since the node started
	err    error
}

func (n *node) look(ctx context.Context) (m measured) {
	h := n.Validators[0]
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

// intervals returns the times in ms between the blocks of two heights, from the header times. With
// one validator, the time of a header is the time at which the validator signed the previous block,
// so an interval is a whole consensus round, including the execution of the block and the pause
// after it.
func (n *node) intervals(ctx context.Context, from, to int64) (list []float64, err error) {
	rpc, err := client.NewHTTP(n.Validators[0].RPC())
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
