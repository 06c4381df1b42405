package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/starling-kv/starling/client"
	"github.com/starling-kv/starling/tx"
)

// parseTxn reads the file of `starlingd txn`; its help describes the format.
func parseTxn(env *cliEnv, content []byte) (*tx.Txn, error) {
	if bytes.HasPrefix(bytes.TrimSpace(content), []byte("{")) {
		return parseTxnJSON(env, content)
	}
	txn := new(tx.Txn)
	section := ""
	for n, line := range strings.Split(string(content), "\n") {
		fail := func(err error) (*tx.Txn, error) { return nil, fmt.Errorf("line %d: %w", n+1, err) }
		words, err := splitLine(line)
		switch {
		case err != nil:
			return fail(err)
		case len(words) == 0:
			continue
		case len(words) == 1:
			order := []string{"", "if", "then", "else"}
			if slices.Index(order, words[0].text) <= slices.Index(order, section) || words[0].quoted {
				return fail(fmt.Errorf(`%q: "if", "then" and "else" must be on lines of their own, in this order, at most once each`, words[0].text))
			}
			section = words[0].text
			continue
		}
		switch section {
		case "if":
			var c tx.Compare
			if c, err = parseCondition(env, words); err == nil {
				txn.Compares = append(txn.Compares, c)
			}
		case "then", "else":
			to := &txn.Success
			if section == "else" {
				to = &txn.Failure
			}
			var op tx.Operation
			if op, err = parseTxnLine(env, words); err == nil {
				*to = append(*to, op)
			}
		default:
			err = errors.New(`a line precedes "if" or "then"`)
		}
		if err != nil {
			return fail(err)
		}
	}
	return txn, nil
}

// txnWord is a word of a line. Quoted words are text, regardless of the flags.
type txnWord struct {
	text   string
	quoted bool
}

func (w txnWord) bytes(env *cliEnv, what string) ([]byte, error) {
	if w.quoted {
		return []byte(w.text), nil
	}
	return parseBytes(env, what, w.text)
}

// splitLine splits a line into words, without its comment.
func splitLine(line string) (words []txnWord, err error) {
	for rest := strings.TrimSpace(line); rest != "" && rest[0] != '#'; rest = strings.TrimSpace(rest) {
		if rest[0] != '"' {
			end := strings.IndexAny(rest, " \t\r")
			if end < 0 {
				end = len(rest)
			}
			words, rest = append(words, txnWord{text: rest[:end]}), rest[end:]
			continue
		}
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			return nil, fmt.Errorf("%s: an unterminated quote, or an invalid escape", rest)
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", quoted, err)
		}
		words, rest = append(words, txnWord{text, true}), rest[len(quoted):]
	}
	return words, nil
}

func parseCondition(env *cliEnv, words []txnWord) (c tx.Compare, err error) {
	if c.Key, err = words[0].bytes(env, "KEY"); err != nil {
		return c, err
	}
	switch how := words[1].text; {
	case len(words) == 2 && how == "absent":
		return c, nil
	case len(words) == 2 && how == "present":
		c.Present = true
		return c, nil
	case len(words) == 3 && how == "=":
		c.Value, err = words[2].bytes(env, "VALUE")
		if err == nil && len(c.Value) == 0 {
			err = errors.New("a value cannot be empty: use KEY absent")
		}
		return c, err
	}
	return c, errors.New("a condition is KEY = VALUE, KEY present or KEY absent")
}

func parseTxnLine(env *cliEnv, words []txnWord) (op tx.Operation, err error) {
	const usage = "an operation is put KEY VALUE, del KEY, get KEY, range START END LIMIT, prefix PREFIX LIMIT, " +
		"del-range START END LIMIT [part] or del-prefix PREFIX LIMIT [part]"
	kind, words := words[0].text, words[1:]
	part := len(words) > 0 && strings.HasPrefix(kind, "del-") && words[len(words)-1].text == "part"
	if part {
		words = words[:len(words)-1]
	}
	names := map[string][]string{
		"put": {"KEY", "VALUE"}, "del": {"KEY"}, "get": {"KEY"}, "range": {"START", "END"}, "prefix": {"PREFIX"},
		"del-range": {"START", "END"}, "del-prefix": {"PREFIX"},
	}[kind]
	ranges := strings.HasSuffix(kind, "range") || strings.HasSuffix(kind, "prefix")
	var limit uint32
	if ranges && len(words) == len(names)+1 {
		n, err := strconv.ParseUint(words[len(names)].text, 10, 32)
		if err != nil {
			return op, fmt.Errorf("LIMIT %q is not a valid number of keys", words[len(names)].text)
		}
		limit, words = uint32(n), words[:len(names)]
	} else if ranges {
		return op, errors.New(usage)
	}
	if names == nil || len(words) != len(names) {
		return op, errors.New(usage)
	}
	var args [2][]byte
	for i, w := range words {
		if args[i], err = w.bytes(env, names[i]); err != nil {
			return op, err
		}
	}
	if strings.HasSuffix(kind, "prefix") {
		args[1] = client.PrefixEnd(args[0])
	}
	switch kind {
	case "put":
		return tx.NewPut(args[0], args[1]), nil
	case "del":
		return tx.NewDelete(args[0]), nil
	case "get":
		return tx.NewRead(args[0]), nil
	case "range", "prefix":
		return tx.NewReadRange(args[0], args[1], limit), nil
	}
	if part {
		return tx.NewDeletePart(args[0], args[1], limit), nil
	}
	return tx.NewDeleteRange(args[0], args[1], limit), nil
}

// txnJSON is the JSON form.
type txnJSON struct {
	If []struct {
		Key, Value      *string
		Present, Absent bool
	} `json:"if"`
	Then []txnOperationJSON `json:"then"`
	Else []txnOperationJSON `json:"else"`
}

type txnOperationJSON struct {
	Put      *struct{ Key, Value *string } `json:"put"`
	Del      *struct{ Key *string }        `json:"del"`
	Get      *struct{ Key *string }        `json:"get"`
	Range    *txnRangeJSON                 `json:"range"`
	DelRange *txnRangeJSON                 `json:"del_range"`
}

type txnRangeJSON struct {
	Start, End, Prefix *string
	Limit              uint64
	Part               bool
}

func parseTxnJSON(env *cliEnv, content []byte) (*tx.Txn, error) {
	var in txnJSON
	decoder := json.NewDecoder(bytes.NewReader(content))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&in); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	txn := new(tx.Txn)
	for i, c := range in.If {
		key, err := jsonField(env, "key", c.Key)
		compare := tx.Compare{Key: key, Present: c.Present}
		set := 0
		for _, is := range []bool{c.Value != nil, c.Present, c.Absent} {
			if is {
				set++
			}
		}
		switch {
		case err != nil:
		case set != 1:
			err = errors.New(`a condition must have exactly one of "value", "present": true and "absent": true`)
		case c.Value != nil:
			if compare.Value, err = jsonField(env, "value", c.Value); err == nil && len(compare.Value) == 0 {
				err = errors.New(`a value cannot be empty: use "absent": true`)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("if, condition %d: %w", i, err)
		}
		txn.Compares = append(txn.Compares, compare)
	}
	var err error
	if txn.Success, err = parseTxnList(env, "then", in.Then); err == nil {
		txn.Failure, err = parseTxnList(env, "else", in.Else)
	}
	return txn, err
}

func parseTxnList(env *cliEnv, name string, list []txnOperationJSON) (operations []tx.Operation, err error) {
	for i, o := range list {
		op, err := o.parse(env)
		if err != nil {
			return nil, fmt.Errorf("%s, operation %d: %w", name, i, err)
		}
		operations = append(operations, op)
	}
	return operations, nil
}

func (o *txnOperationJSON) parse(env *cliEnv) (op tx.Operation, err error) {
	set := 0
	for _, is := range []bool{o.Put != nil, o.Del != nil, o.Get != nil, o.Range != nil, o.DelRange != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		return op, errors.New(`an operation must have exactly one of "put", "del", "get", "range" and "del_range"`)
	}
	switch {
	case o.Put != nil:
		key, err1 := jsonField(env, "key", o.Put.Key)
		value, err2 := jsonField(env, "value", o.Put.Value)
		return tx.NewPut(key, value), errors.Join(err1, err2)
	case o.Del != nil:
		key, err := jsonField(env, "key", o.Del.Key)
		return tx.NewDelete(key), err
	case o.Get != nil:
		key, err := jsonField(env, "key", o.Get.Key)
		return tx.NewRead(key), err
	case o.Range != nil:
		if o.Range.Part {
			return op, errors.New(`"part" is valid for "del_range" only: a range read always ends at its limit`)
		}
		start, end, err := o.Range.bounds(env)
		return tx.NewReadRange(start, end, o.Range.limit()), err
	}
	start, end, err := o.DelRange.bounds(env)
	if o.DelRange.Part {
		return tx.NewDeletePart(start, end, o.DelRange.limit()), err
	}
	return tx.NewDeleteRange(start, end, o.DelRange.limit()), err
}

// limit returns the limit, or a value that is refused if the one in the file exceeds 32 bits.
func (r *txnRangeJSON) limit() uint32 { return uint32(min(r.Limit, math.MaxUint32)) }

func (r *txnRangeJSON) bounds(env *cliEnv) (start, end []byte, err error) {
	if r.Prefix != nil {
		if r.Start != nil || r.End != nil {
			return nil, nil, errors.New(`use either "start" and "end" or "prefix"`)
		}
		start, err = parseBytes(env, "prefix", *r.Prefix)
		return start, client.PrefixEnd(start), err
	}
	if r.Start == nil || r.End == nil {
		return nil, nil, errors.New(`a range needs "start" and "end" ("": open), or "prefix"`)
	}
	if start, err = parseBytes(env, "start", *r.Start); err == nil {
		end, err = parseBytes(env, "end", *r.End)
	}
	return start, end, err
}

func jsonField(env *cliEnv, name string, s *string) ([]byte, error) {
	if s == nil {
		return nil, fmt.Errorf("no %q", name)
	}
	return parseBytes(env, name, *s)
}
