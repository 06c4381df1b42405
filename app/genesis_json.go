package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// This file is a strict parser of JSON objects. encoding/json takes the last of two equal fields,
// and matches names in any case; both are dangerous in a file that all validators must read alike.

type fieldParser func(raw json.RawMessage, path string) error

type fields map[string]fieldParser

// parseObject passes each field of the object raw to its parser. path is the position of the object
// in the file, for errors ("" at the top).
func parseObject(raw []byte, path string, known fields) error {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if token, err := decoder.Token(); err != nil {
		return syntax(path, err)
	} else if token != json.Delim('{') {
		return fmt.Errorf("%s must be an object, it is %s", orSelf(path), kindOf(raw))
	}
	seen := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return syntax(path, err)
		}
		name, _ := token.(string) // the names of an object's fields are strings
		var value json.RawMessage
		if err := decoder.Decode(&value); err != nil {
			return syntax(join(path, name), err)
		}
		parse, ok := known[name]
		if !ok {
			return fmt.Errorf("unknown field %s (known: %s)", join(path, name), strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if seen[name] {
			return fmt.Errorf("field %s is repeated", join(path, name))
		}
		seen[name] = true
		if err := parse(value, join(path, name)); err != nil {
			return err
		}
	}
	if _, err := decoder.Token(); err != nil { // the closing brace
		return syntax(path, err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s is followed by more", orSelf(path))
	}
	return nil
}

// into parses a field of a simple type, which want describes.
func into[T bool | string](to *T, want string) fieldParser {
	return func(raw json.RawMessage, path string) error {
		if err := json.Unmarshal(raw, to); err != nil || kindOf(raw) == "null" {
			return fmt.Errorf("%s must be %s, it is %s", path, want, kindOf(raw))
		}
		// encoding/json decodes invalid Unicode (a lone surrogate) as U+FFFD; other decoders do
		// not.
		if text, ok := any(*to).(string); ok && strings.ContainsRune(text, utf8.RuneError) {
			return fmt.Errorf("%s is not proper Unicode: write it in hex, if there is such a field", path)
		}
		return nil
	}
}

func intoNumber[T int64 | uint64](to *T) fieldParser {
	return func(raw json.RawMessage, path string) error {
		if err := json.Unmarshal(raw, to); err != nil || kindOf(raw) == "null" {
			return fmt.Errorf("%s must be a whole number that fits %T, it is %s", path, *to, kindOf(raw))
		}
		return nil
	}
}

// intoList passes each element of a list to add.
func intoList(add fieldParser) fieldParser {
	return func(raw json.RawMessage, path string) error {
		var elements []json.RawMessage
		// null is an empty list: encoding/json may write it in this form.
		if err := json.Unmarshal(raw, &elements); err != nil {
			return fmt.Errorf("%s must be a list, it is %s", path, kindOf(raw))
		}
		for i, element := range elements {
			if err := add(element, fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	}
}

func syntax(path string, err error) error { return fmt.Errorf("%s is not JSON: %w", orSelf(path), err) }

func orSelf(path string) string {
	if path == "" {
		return "it"
	}
	return path
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// kindOf describes a JSON value in an error, shortened.
func kindOf(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	switch {
	case len(raw) == 0:
		return "empty"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "a list"
	case len(raw) > 40:
		return string(raw[:40]) + "…"
	default:
		return string(raw)
	}
}
