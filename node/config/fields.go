package config

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
)

// field is one setting: its name in files and flags (rpc.laddr), and its default value.
type field struct {
	name  string
	value reflect.Value
}

// fieldsOf lists the settings of a configuration struct by its mapstructure tags.
func fieldsOf(config any) []field {
	return appendFields(nil, "", reflect.ValueOf(config))
}

func appendFields(list []field, prefix string, v reflect.Value) []field {
	for v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag.Get("mapstructure")
		name, option, _ := strings.Cut(tag, ",")
		value := v.Field(i)
		isStruct := value.Kind() == reflect.Struct || value.Kind() == reflect.Pointer && value.Type().Elem().Kind() == reflect.Struct
		switch {
		case option == "squash":
			list = appendFields(list, prefix, value)
		case name == "" || name == "home": // CometBFT sets the home folder itself, in every section
		case isStruct && !(value.Kind() == reflect.Pointer && value.IsNil()):
			list = appendFields(list, prefix+name+".", value)
		default:
			list = append(list, field{prefix + name, value})
		}
	}
	return list
}

// settable reports whether a setting can be a flag or a variable (lists of tables cannot).
func (f field) settable() bool {
	switch f.value.Kind() {
	case reflect.Bool, reflect.String, reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint32, reflect.Uint64:
		return true
	case reflect.Slice:
		return f.value.Type().Elem().Kind() == reflect.String
	default:
		return false
	}
}

var durationType = reflect.TypeFor[time.Duration]()

// addFlag defines the flag of a setting. The flag's default is only for the help text: Load checks
// whether the flag was given.
func (f field) addFlag(flags *pflag.FlagSet, usage string) {
	switch {
	case f.value.Type() == durationType:
		flags.Duration(f.name, time.Duration(f.value.Int()), usage)
	case f.value.Kind() == reflect.Bool:
		flags.Bool(f.name, f.value.Bool(), usage)
	case f.value.Kind() == reflect.String:
		flags.String(f.name, f.value.String(), usage)
	case f.value.Kind() == reflect.Slice:
		flags.StringSlice(f.name, f.value.Interface().([]string), usage)
	case f.value.CanUint():
		flags.Uint64(f.name, f.value.Uint(), usage)
	default:
		flags.Int64(f.name, f.value.Int(), usage)
	}
}

// fits returns an error if a value in a TOML file has the wrong type for the setting. Numbers may
// be quoted, as CometBFT writes some of them.
func (f field) fits(value any) error {
	if text, quoted := value.(string); quoted && (f.value.CanInt() || f.value.CanUint()) {
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			value = n
		}
	}
	want, ok := "", true
	switch {
	case f.value.Type() == durationType:
		want = `a time with a unit, in quotes, such as "10s"`
		switch v := value.(type) {
		case int64:
		case string:
			_, err := time.ParseDuration(v)
			ok = err == nil
		default:
			ok = false
		}
	case f.value.Kind() == reflect.Bool:
		want = "true or false"
		_, ok = value.(bool)
	case f.value.Kind() == reflect.String:
		want = "text in quotes"
		_, ok = value.(string)
	case f.value.CanInt():
		want = "a whole number"
		n, is := value.(int64)
		ok = is && !f.value.OverflowInt(n)
	case f.value.CanUint():
		want = "a whole number of 0 or more"
		n, is := value.(int64)
		ok = is && n >= 0 && !f.value.OverflowUint(uint64(n))
	case f.value.Kind() == reflect.Float64:
		want = "a number"
		n, is := value.(float64)
		_, isInt := value.(int64)
		ok = isInt || is && !math.IsNaN(n)
	case f.value.Kind() == reflect.Slice:
		want = "a list in square brackets, or text with commas"
		_, isText := value.(string)
		ok = isText && f.settable() || value != nil && reflect.TypeOf(value).Kind() == reflect.Slice
	}
	if !ok {
		return fmt.Errorf("%s must be %s, it is %#v", f.name, want, value)
	}
	return nil
}

// withdrawn are settings of earlier programs that have no effect any more, so that their files
// still load.
var withdrawn = []string{"storage_node.interval", "storage_node.keep"}

// readFile reads a TOML file. A name that is not in fields is an error.
func readFile(path string, fields []field) (*viper.Viper, error) {
	v := viper.New()
	v.SetConfigFile(path)
	v.SetConfigType("toml")
	if err := v.ReadInConfig(); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		return nil, fmt.Errorf("%s: %w", path, malformed(err))
	}
	keys := v.AllKeys()
	slices.Sort(keys)
	for _, key := range keys {
		if slices.Contains(withdrawn, strings.ToLower(key)) {
			continue
		}
		i := slices.IndexFunc(fields, func(f field) bool { return strings.EqualFold(f.name, key) })
		if i < 0 {
			return nil, fmt.Errorf("%s: unknown field %s%s: correct its name or remove it", path, key, suggestion(key, fields))
		}
		if err := fields[i].fits(v.Get(key)); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return v, nil
}

// malformed adds a hint to the error of text that is not TOML, and the line and column, which
// go-toml does not report for a name that is given twice.
func malformed(err error) error {
	if unknown, is := errors.AsType[*toml.StrictMissingError](err); is && len(unknown.Errors) > 0 {
		first := &unknown.Errors[0]
		line, _ := first.Position()
		return fmt.Errorf("line %d: there is no setting %q\nremove it, or correct its name", line, strings.Join(first.Key(), "."))
	}
	var at *toml.DecodeError
	if errors.As(err, &at) {
		line, column := at.Position()
		return fmt.Errorf("line %d, column %d: %w\ncorrect this line: a setting is written as name = value, and text needs quotes", line, column, at)
	}
	if parse, is := errors.AsType[viper.ConfigParseError](err); is {
		return fmt.Errorf("%w\ncorrect the file: it may have each section and each setting once", parse.Unwrap())
	}
	return err
}

// suggestion returns a hint with a setting of the same last name in another section.
func suggestion(key string, fields []field) string {
	for _, f := range fields {
		if lastPart(f.name) == lastPart(key) {
			return fmt.Sprintf(" (did you mean %s?)", f.name)
		}
	}
	return ""
}

func lastPart(key string) string {
	return strings.TrimPrefix(filepath.Ext("x."+key), ".")
}
