package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

const sendFileHelp = `Send the operations of a file, one JSON object per line, many per transaction:

  {"put": {"key": "fruit/apple", "value": "green"}}
  {"del": {"key": "fruit/pear"}}
  {"cas": {"key": "lock", "expected": "", "value": "alice"}}

Keys and values are read as on the command line (text, 0x-hex, --hex, --base64). FILE -
is standard input. The whole file is checked before anything is sent. Transactions are
executed one after another in the order of the file, each completely or not at all. If
the command stops, by Ctrl-C or by an error, it waits for the transactions in flight and
prints the number of lines that are done: resume from there with --skip.`

func newSendFileCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "send-file FILE",
		Short: "Send the operations of a file, many per transaction",
		Long:  sendFileHelp,
		Example: `  starlingd tx send-file operations.jsonl --from alice
  starlingd tx send-file operations.jsonl --from alice --skip 12000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s := fileSender{env: env, path: args[0], batch: env.V.GetInt("batch"), skip: env.V.GetInt("skip"), window: env.V.GetInt("in-flight")}
			if s.batch < 1 || s.batch > tx.MaxOperations || s.skip < 0 || s.window < 1 {
				return usagef("--batch must be 1 to %d, --in-flight 1 or more, --skip 0 or more", tx.MaxOperations)
			}
			path, done, err := inputFile(cmd, s.path)
			if err != nil {
				return err
			}
			defer done()
			s.path = path
			return s.run(cmd)
		},
	}
	addSignFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	cmd.Flags().Int("batch", 500, "maximum number of operations in a transaction")
	cmd.Flags().Int("in-flight", 4, "maximum number of transactions in flight")
	cmd.Flags().Int("skip", 0, "number of lines at the start of the file that are already done")
	return cmd
}

// fileOperation is a line of the file.
type fileOperation struct {
	Put *struct{ Key, Value *string }           `json:"put"`
	Del *struct{ Key *string }                  `json:"del"`
	Cas *struct{ Key, Expected, Value *string } `json:"cas"`
}

func parseFileOperation(env *cliEnv, line []byte) (tx.Operation, error) {
	if len(bytes.TrimSpace(line)) == 0 {
		return tx.Operation{}, errors.New("the line is empty")
	}
	var o fileOperation
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&o); err != nil {
		return tx.Operation{}, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return tx.Operation{}, errors.New("more than one JSON value")
	}
	field := func(name string, s *string) ([]byte, error) { return jsonField(env, name, s) }
	switch {
	case o.Put != nil && o.Del == nil && o.Cas == nil:
		key, err1 := field("key", o.Put.Key)
		value, err2 := field("value", o.Put.Value)
		return tx.NewPut(key, value), errors.Join(err1, err2)
	case o.Del != nil && o.Put == nil && o.Cas == nil:
		key, err := field("key", o.Del.Key)
		return tx.NewDelete(key), err
	case o.Cas != nil && o.Put == nil && o.Del == nil:
		key, err1 := field("key", o.Cas.Key)
		expected, err2 := field("expected", o.Cas.Expected)
		value, err3 := field("value", o.Cas.Value)
		return tx.NewCompareAndPut(key, expected, value), errors.Join(err1, err2, err3)
	default:
		return tx.Operation{}, errors.New(`a line must have exactly one of "put", "del" and "cas"`)
	}
}

// fileSender sends the lines of a file, a window of transactions at a time.
//
//	lines:  ── skipped ──│── done ──│── in flight (window, oldest first) ──│── not read yet ──►
type fileSender struct {
	env                 *cliEnv
	path                string
	batch, skip, window int

	client   *client.Client
	progress *progress
	done     int // lines at the start of the file that are in blocks or were skipped
	reached  int // last line that is in a block; above done if an earlier line was refused
	refused  []string
	underWay []batch
}

type batch struct {
	sent        *client.Sent
	first, last int // lines
}

func (b batch) String() string { return fmt.Sprintf("lines %d to %d", b.first, b.last) }

func (s *fileSender) run(cmd *cobra.Command) error {
	key, err := signer(s.env)
	if err != nil {
		return err
	}
	total, err := s.check()
	if err != nil {
		return err
	}
	if s.skip > total {
		return usagef("--skip is %d, but %q has %s", s.skip, s.path, counted(total, "line"))
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Ctrl-C stops sending. Transactions in flight are then awaited until --timeout or a second
	// Ctrl-C.
	waiting := context.WithoutCancel(ctx)
	dialing, cancel := context.WithTimeout(ctx, s.env.V.GetDuration("timeout"))
	defer cancel()
	if s.client, err = dial(dialing, s.env, client.WithKey(key)); err != nil {
		return explain(err)
	}
	s.done, s.reached = s.skip, s.skip
	s.progress = newProgress(s.env.Err, "operations", total, s.skip)
	err = s.sendAll(ctx, waiting)
	if err == nil && ctx.Err() != nil {
		err = errors.New("stopped")
	}
	stop()
	for err != nil && len(s.underWay) > 0 {
		before := len(s.underWay)
		if _ = s.await(waiting); len(s.underWay) == before {
			break // its outcome is unknown; report the first error
		}
	}
	s.progress.end()
	if err != nil {
		return s.stopped(err)
	}
	fmt.Fprintf(s.env.Err, "%s sent, all in blocks\n", counted(s.done-s.skip, "operation"))
	return nil
}

// stopped reports the lines that are done, and the lines that may be.
func (s *fileSender) stopped(err error) error {
	message := fmt.Sprintf("%s in blocks so far", counted(s.done, "line"))
	next := s.done
	if len(s.refused) > 0 {
		message += ", " + strings.Join(s.refused, " and ") + " were refused"
		if s.reached > s.done {
			message += fmt.Sprintf(", and the lines after them up to line %d are in blocks: send the refused lines separately", s.reached)
			next = s.reached
		}
	}
	if n := len(s.underWay); n > 0 {
		message += fmt.Sprintf(", lines %d to %d were sent and may be in blocks too: check their keys", s.underWay[0].first, s.underWay[n-1].last)
	}
	return explain(fmt.Errorf("%w; %s; resume with --skip %d", err, message, next))
}

// check parses every line, so that an invalid line is found before anything is sent. It returns the
// number of lines.
func (s *fileSender) check() (lines int, err error) {
	err = s.each(func(int, tx.Operation) error { lines++; return nil })
	return lines, err
}

// each visits the operations of the file; lines are counted from 1.
func (s *fileSender) each(visit func(line int, op tx.Operation) error) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	scanner := bufio.NewScanner(f)
	const longestLine = 4 * (2*tx.MaxValueBytes + tx.MaxKeyBytes) // in hex, with room for spaces
	scanner.Buffer(make([]byte, 64<<10), longestLine)
	line := 1
	for ; scanner.Scan(); line++ {
		op, err := parseFileOperation(s.env, scanner.Bytes())
		if err != nil {
			return usagef("%s, line %d: %w", s.path, line, err)
		}
		if err := visit(line, op); err != nil {
			return err
		}
	}
	if err := scanner.Err(); err != nil {
		return fmt.Errorf("%s, line %d: %w", s.path, line, err)
	}
	return nil
}

func (s *fileSender) sendAll(ctx, waiting context.Context) error {
	var (
		operations []tx.Operation
		size, last int
	)
	flush := func() error {
		if len(operations) == 0 {
			return nil
		}
		for len(s.underWay) >= s.window {
			if err := s.await(waiting); err != nil {
				return err
			}
		}
		b := batch{first: last - len(operations) + 1, last: last}
		var err error
		// While nodes catch up, Send waits until its context ends.
		sending, cancel := context.WithTimeout(waiting, s.env.V.GetDuration("timeout"))
		defer cancel()
		if b.sent, err = s.client.Send(sending, operations...); err != nil {
			return fmt.Errorf("%v: %w", b, err)
		}
		s.underWay = append(s.underWay, b)
		operations, size = nil, 0
		return nil
	}
	err := s.each(func(line int, op tx.Operation) error {
		if line <= s.skip {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return errStopped
		}
		// A transaction consists of its operations, a few bytes per operation for the list, and a
		// constant overhead, for which MaxBytes leaves room.
		const perOperation, rest = 8, 200
		n := op.Size() + perOperation
		if len(operations) == s.batch || len(operations) > 0 && size+n > tx.MaxBytes-rest {
			if err := flush(); err != nil {
				return err
			}
		}
		operations, size, last = append(operations, op), size+n, line
		return nil
	})
	if errors.Is(err, errStopped) {
		return nil // operations gathered but not sent are not done
	}
	if err == nil {
		err = flush()
	}
	for err == nil && len(s.underWay) > 0 {
		err = s.await(waiting)
	}
	return err
}

var errStopped = errors.New("stopped")

// await waits for the oldest transaction in flight.
func (s *fileSender) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.env.V.GetDuration("timeout"))
	defer cancel()
	oldest := s.underWay[0]
	_, err := oldest.sent.Wait(ctx)
	var refused *client.TxError
	if err != nil && !errors.As(err, &refused) {
		return fmt.Errorf("%v: %w", oldest, err)
	}
	s.underWay = s.underWay[1:]
	if err != nil {
		s.refused = append(s.refused, oldest.String())
		return fmt.Errorf("%v: %w", oldest, err)
	}
	s.reached = oldest.last
	if len(s.refused) == 0 {
		s.done = s.reached
		s.progress.at(s.done)
	}
	return nil
}
