package script

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// messages are the texts of failures whose script has none.
var messages = map[Kind]string{
	RateLimit:       "Rate limit reached. Please try again later.",
	Quota:           "You exceeded your current quota, please check your plan and billing details.",
	Overloaded:      "Overloaded",
	ServerError:     "The server had an error while processing your request.",
	Unauthenticated: "Incorrect API key provided.",
	InvalidRequest:  "The request is invalid.",
	TooLong:         "prompt is too long",
	Cut:             "the connection ended in the middle of the response",
	Nonsense:        "the response violates the protocol",
	Hang:            "no data for too long",
}

func (f *Failure) message() string { return cmp.Or(f.Message, messages[f.Kind]) }

// codes are the codes that clients of vendors return for failures.
var codes = map[Kind]sandpit.Code{
	RateLimit: sandpit.Exhausted, Quota: sandpit.Exhausted, Overloaded: sandpit.Unavailable, ServerError: sandpit.Unavailable,
	Unauthenticated: sandpit.Unauthenticated, InvalidRequest: sandpit.Invalid, TooLong: sandpit.Invalid,
	Cut: sandpit.Unavailable, Nonsense: sandpit.Internal, Hang: sandpit.Timeout,
}

// raise returns the failure as a client of a vendor does.
func (f *Failure) raise(ctx context.Context, name string) error {
	if f.Kind == Hang {
		<-ctx.Done()
		return fmt.Errorf("ask the model %q: %w", name, context.Cause(ctx))
	}
	err := sandpit.Errorf(codes[f.Kind], "ask the model %q: %s", name, f.message())
	if f.Kind == TooLong {
		err = sandpit.Errorf(sandpit.Invalid, "ask the model %q: %w: %s", name, model.ErrTooLong, f.message())
	}
	if f.Kind == RateLimit || codes[f.Kind] == sandpit.Unavailable {
		err = sandpit.WithRetry(err, time.Duration(f.RetryAfter))
	}
	return err
}
