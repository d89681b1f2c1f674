package envd

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"unicode"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/sandpit-dev/sandpit"
)

const (
	// maxMessage bounds one message of the Connect services, in bytes; what a
	// list may have is more.
	maxMessage = 1 << 20
	maxList    = 16 << 20
	// maxObjects bounds the parts of a message: two bytes are enough for one that
	// takes a hundred times as many in memory.
	maxObjects     = 4 << 10
	maxListObjects = 256 << 10
	// maxErrorBody bounds what is read of a failed call, in bytes.
	maxErrorBody = 64 << 10
	// maxErrorText bounds what is told of it, in bytes.
	maxErrorText = 1 << 10
)

// clientBounds are options for a client whose messages have up to so many bytes and
// parts.
func clientBounds(size, objects int) []connect.ClientOption {
	return []connect.ClientOption{
		connect.WithReadMaxBytes(size),
		connect.WithCodec(codec{objects}),
		connect.WithAcceptCompression("gzip", nil, nil), // the connection is local
	}
}

// codec is the binary form of messages, with a bound on their parts.
type codec struct{ objects int }

var errNotMessage = errors.New("not a message")

// Name implements connect.Codec.
func (codec) Name() string { return "proto" }

// IsBinary tells connect that a message is not text.
func (codec) IsBinary() bool { return true }

// Marshal implements connect.Codec.
func (c codec) Marshal(m any) ([]byte, error) { return c.MarshalAppend(nil, m) }

// MarshalAppend is Marshal with a buffer.
func (codec) MarshalAppend(b []byte, m any) ([]byte, error) {
	msg, ok := m.(proto.Message)
	if !ok {
		return nil, errNotMessage
	}
	b, err := proto.MarshalOptions{}.MarshalAppend(b, msg)
	if err != nil { // there is one reason why
		err = sandpit.Errorf(sandpit.Invalid, "what is not UTF-8 cannot be named in this call: %w", err)
	}
	return b, err
}

// Unmarshal implements connect.Codec.
func (c codec) Unmarshal(data []byte, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return errNotMessage
	}
	left := c.objects
	if err := countParts(data, msg.ProtoReflect().Descriptor(), &left); err != nil {
		return err
	}
	return proto.Unmarshal(data, msg)
}

// countParts takes the parts of a message off left: messages in it and members of
// lists.
func countParts(data []byte, kind protoreflect.MessageDescriptor, left *int) error {
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return protowire.ParseError(n)
		}
		field := kind.Fields().ByNumber(number)
		if wire == protowire.BytesType && field != nil && (field.IsList() || field.Message() != nil) {
			if *left--; *left < 0 {
				return sandpit.Errorf(sandpit.Exhausted, "the guest answers with more than can be taken")
			}
			if inner, m := protowire.ConsumeBytes(data); m > 0 && field.Message() != nil {
				if err := countParts(inner, field.Message(), left); err != nil {
					return err
				}
			}
		}
		data = data[n:]
	}
	return nil
}

// checkAnswer bounds an answer that tells of a failure, and refuses one that
// turns the connection into something else: nothing would end that when the
// caller's context ends.
func checkAnswer(res *http.Response) (*http.Response, error) {
	if res.StatusCode == http.StatusSwitchingProtocols {
		return nil, errors.Join(sandpit.Errorf(sandpit.Internal, "the guest wants to speak another protocol"), res.Body.Close())
	}
	if res.StatusCode/100 != 2 {
		res.Body = readCloser{io.LimitReader(res.Body, maxErrorBody), res.Body}
	}
	return res, nil
}

// plainText makes the guest's words fit for an error: one short line that moves no
// terminal's cursor.
func plainText(text string) string {
	cut := ""
	if len(text) > maxErrorText {
		text, cut = text[:maxErrorText], "..."
	}
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsPrint(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, "")) + cut
}
