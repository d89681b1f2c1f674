package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// ParseSize reads a size as Docker writes it and returns bytes: digits, with a
// fraction if need be, then b, k, m, g, t or p, which count in steps of 1024
// and may be followed by "b" or "ib"; case does not matter. No unit means
// bytes. A fraction of a byte is dropped.
//
// Invalid: not a size, or one of 8 EiB and more.
func ParseSize(text string) (int64, error) {
	digits := strings.TrimRight(text, "bBiIkKmMgGtTpP ")
	factor, ok := unitFactor(strings.ToLower(strings.TrimPrefix(text[len(digits):], " ")))
	whole, fraction, hasPoint := strings.Cut(digits, ".")
	if !ok || !isDigits(whole) || hasPoint && !isDigits(fraction) {
		return 0, notSize(text)
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	part, partErr := strconv.ParseFloat("0."+fraction, 64)
	if partErr != nil {
		return 0, notSize(text)
	}
	rest := int64(part * float64(factor))
	if err != nil || n > (math.MaxInt64-rest)/factor {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s is larger than any machine", quoteText(text))
	}
	return n*factor + rest, nil
}

func notSize(text string) error {
	return sandpit.Errorf(sandpit.Invalid, "%s is not a size; use for example 512m or 2g", quoteText(text))
}

func isDigits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

func unitFactor(suffix string) (factor int64, ok bool) {
	if suffix == "" || suffix == "b" {
		return 1, true
	}
	power := strings.IndexByte("kmgtp", suffix[0])
	if rest := suffix[1:]; power < 0 || rest != "" && rest != "b" && rest != "ib" {
		return 0, false
	}
	return 1 << (10 * (power + 1)), true
}

var errNotTime = errors.New(`is not a time; use a number of seconds like 300, or text like "5m"`)

// parseTimeout reads whole seconds ("300") or a Go duration ("5m").
func parseTimeout(text string) (time.Duration, error) {
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil {
		return secondsToDuration(seconds)
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, errNotTime
	}
	return d, nil
}

func secondsToDuration(seconds int64) (time.Duration, error) {
	const most = int64(math.MaxInt64 / time.Second)
	if seconds > most {
		return 0, fmt.Errorf("is too long; use at most %d seconds", most)
	}
	return time.Duration(max(seconds, -1)) * time.Second, nil
}
