#!/usr/bin/env bash
# Print what an llmgw cluster writes from now on, one CloudEvent a line: subject, then JSON.
#
#     ./watch.sh 127.0.0.1 4222 'llmgw.v1.default.event.>'
#
# Needs bash alone: NATS is a protocol of lines. Live messages only; what was written while nobody
# listened is in the log, and one message of it is had by asking (see ask.sh).
set -eu
export LC_ALL=C # so that a character is a byte
host=$1 port=$2 pattern=$3

exec 3<>"/dev/tcp/$host/$port"
printf 'CONNECT {"verbose":false,"lang":"bash","version":"1"}\r\nSUB %s 1\r\nPING\r\n' "$pattern" >&3
while IFS= read -r line <&3; do
  set -- ${line%$'\r'}
  case ${1-} in
    PING) printf 'PONG\r\n' >&3 ;;
    PONG) echo "listening on $pattern" >&2 ;;
    -ERR) echo "$line" >&2; exit 1 ;;
    MSG) # MSG <subject> <sid> [reply] <bytes>
      subject=$2 bytes=${!#}
      IFS= read -r -N "$bytes" payload <&3
      printf '%s %s\n' "$subject" "$payload" ;;
  esac
done
echo "the server has closed the connection" >&2
exit 1
