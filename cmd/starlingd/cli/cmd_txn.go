package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

const txnHelp = `Check conditions and execute one of two lists of operations, in one transaction: no other
transaction comes between the conditions and the operations. FILE is text, or JSON if it
starts with a brace; without FILE, or with -, it is standard input. Each line has one
condition or operation:

  if
    lock = alice                   the key has this value
    lock present                   the key exists
    job/7 absent                   the key does not exist
  then
    put job/7 "in progress"
    del job/6
    get job/5
    range job/ job0 10             the first 10 keys in [job/, job0) with their values
    prefix job/ 10                 the same
    del-range job/ job0 10         delete them; refused if there are more than 10
    del-prefix job/ 10 part        delete the first 10
  else
    get lock

"then" runs if all conditions hold, or if there are none; otherwise "else" runs. "then" or
"else" can be omitted. Words are separated by spaces; double quotes enclose text with Go's
escapes ("a b\n"). Other keys and values are read as on the command line (text, 0x-hex,
--hex, --base64). "" as the end of a range is the end of all keys. # begins a comment.
Values are never empty: use absent.

The first line of the output is SUCCESS if the conditions held, otherwise FAILURE; both
have exit status 0. The key of --from needs the right to all writes of "then" and "else".`

const txnExample = `  printf 'if\n lock absent\nthen\n put lock alice\nelse\n get lock\n' | starlingd txn --from alice
  starlingd txn change.txt --from alice --output json

In JSON, with each kind of condition and operation:
  {"if":   [{"key": "lock", "value": "alice"}, {"key": "job/7", "absent": true}, {"key": "job/5", "present": true}],
   "then": [{"put": {"key": "job/7", "value": "in progress"}}, {"del": {"key": "job/6"}},
            {"del_range": {"prefix": "old/", "limit": 10, "part": true}}],
   "else": [{"get": {"key": "lock"}}, {"range": {"start": "job/", "end": "job0", "limit": 10}}]}`

func newTxnCmd(env *cliEnv) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "txn [FILE]",
		Short:   "Check conditions and change several keys in one transaction",
		Long:    txnHelp,
		Example: txnExample,
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := "-"
			if len(args) > 0 {
				path = args[0]
			}
			const inHex = 4 // maximum bytes of one byte in hex, with room for spaces
			content, err := readInput(cmd, path, inHex*tx.MaxBytes)
			if err != nil {
				return err
			}
			txn, err := parseTxn(env, content)
			if err != nil {
				return usagef("%s: %w", path, err)
			}
			result, err := execute(cmd, env, tx.Operation{Op: &tx.Operation_Txn{Txn: txn}})
			if err != nil {
				return err
			}
			return printTxn(env, txn, result)
		},
	}
	addSignFlags(cmd.Flags())
	addBytesFlags(cmd.Flags())
	return cmd
}

type txnResultJSON struct {
	Height    int64                 `json:"height"`
	Hash      string                `json:"hash"`
	Succeeded bool                  `json:"succeeded"`
	Results   []operationResultJSON `json:"results"` // of the executed list
}

func printTxn(env *cliEnv, txn *tx.Txn, result *client.TxResult) error {
	if len(result.Results) != 1 {
		return fmt.Errorf("the node reported %d results for one txn", len(result.Results))
	}
	done, ran, word := result.Results[0], txn.Failure, "FAILURE"
	if done.Succeeded {
		ran, word = txn.Success, "SUCCESS"
	}
	if len(done.Results) != len(ran) {
		return fmt.Errorf("the node reported %d results for %s", len(done.Results), counted(len(ran), "operation"))
	}
	if env.JSON() {
		out := txnResultJSON{Height: result.Height, Hash: fmt.Sprintf("%X", result.Hash), Succeeded: done.Succeeded, Results: []operationResultJSON{}}
		for i := range done.Results {
			out.Results = append(out.Results, toResultJSON(&done.Results[i]))
		}
		return writeJSON(env.Out, out)
	}
	fmt.Fprintf(env.Err, "block %d, transaction %X\n", result.Height, result.Hash)
	if _, err := fmt.Fprintln(env.Out, word); err != nil {
		return err
	}
	for i := range ran {
		if err := printInTxn(env, &ran[i], &done.Results[i]); err != nil {
			return err
		}
	}
	return nil
}

// printInTxn prints the result of one operation of a txn; entries of reads are printed as by range.
func printInTxn(env *cliEnv, operation *tx.Operation, done *tx.OperationResult) (err error) {
	switch op := operation.Op.(type) {
	case *tx.Operation_Put:
		_, err = fmt.Fprintf(env.Out, "put %s\n", formatBytes(env, op.Put.Key))
	case *tx.Operation_Delete:
		what := "was absent"
		if done.Found {
			what = "deleted"
		}
		_, err = fmt.Fprintf(env.Out, "%s %s\n", formatBytes(env, op.Delete.Key), what)
	case *tx.Operation_Read:
		if !done.Found {
			_, err = fmt.Fprintf(env.Out, "%s is absent\n", formatBytes(env, op.Read.Key))
			break
		}
		_, err = fmt.Fprintf(env.Out, "%s\t%s\n", formatBytes(env, op.Read.Key), formatBytes(env, done.Value))
	case *tx.Operation_ReadRange:
		for _, e := range done.Entries {
			if _, err = fmt.Fprintf(env.Out, "%s\t%s\n", formatBytes(env, e.Key), formatBytes(env, e.Value)); err != nil {
				return err
			}
		}
		if done.More {
			fmt.Fprintf(env.Err, "the range from %s has more keys than the %d printed\n", formatBytes(env, op.ReadRange.Start), len(done.Entries))
		}
	case *tx.Operation_DeleteRange:
		_, err = fmt.Fprintf(env.Out, "%s deleted\n", counted(done.Deleted, "key"))
		if done.More {
			fmt.Fprintf(env.Err, "the range from %s has more keys: run it again\n", formatBytes(env, op.DeleteRange.Start))
		}
	}
	return err
}
