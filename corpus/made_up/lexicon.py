"""The words of the made-up company Northgate: names, topics and phrase grammar, as plain data for ``synthetic``.

A table is a name and its phrases, separated by bars; ``{slot}`` in a phrase is filled from the table of that name or
by the writer. Facts, problems and remarks are clauses that start in lower case; a step is a verb phrase in its base
form; a verb is given as base form, past (equal to its participle) and gerund. Every verb of a topic takes every thing
of that topic as its object.
"""

from collections.abc import Mapping

Tables = Mapping[str, tuple[str, ...]]

DOMAIN = "northgate.example"


def _tables(text: str) -> dict[str, tuple[str, ...]]:
    """Tables by name: one starts at each line that is not indented."""
    entries = text.strip().replace("\n  ", " ").splitlines()
    named = (entry.split(":", 1) for entry in entries)
    return {name: tuple(phrase.strip() for phrase in phrases.split("|")) for name, phrases in named}


def _topic(text: str, every_topic: Tables) -> Tables:
    """The tables of one topic: its own, with its verbs split into forms, and those that every topic shares."""
    own = _tables(text)
    base, past, gerund = zip(*(verb.split() for verb in own.pop("verb")), strict=True)
    return {**every_topic, **own, "step": own["step"] + every_topic["step"], "do": base, "did": past, "doing": gerund}


STOCKS: dict[str, tuple[str, ...]] = _tables("""
person: Aaron | Abena | Adele | Aditi | Agnes | Ahmed | Aiko | Alan | Alicia | Amara | Amir | Ana | Andre | Anika |
  Anton | Arjun | Asha | Astrid | Beatriz | Ben | Bianca | Boris | Brenda | Bruno | Camila | Carl | Carmen | Cecilia |
  Chidi | Chloe | Clara | Conor | Dalia | Damian | Dana | Daniel | Deepa | Diego | Dina | Dmitri | Dora | Edith |
  Eduardo | Elena | Elias | Elif | Emeka | Emma | Erik | Esther | Eva | Farah | Felix | Fiona | Frank | Gabriel |
  Gita | Grace | Greta | Hana | Harold | Hassan | Helen | Henrik | Hugo | Ibrahim | Ida | Imran | Ines | Ingrid |
  Irene | Isaac | Ivan | Jamal | Janet | Javier | Jin | Joan | Joel | Jonas | Judith | Julia | Kamal | Karen | Karim |
  Kate | Keiko | Kofi | Kwame | Lars | Laura | Leila | Leon | Lina | Linda | Lucas | Lucia | Magda | Malik | Marcus |
  Maria | Marta | Maya | Mei | Miguel | Mina | Mona | Nadia | Naomi | Nina | Nora | Oleg | Olga | Omar | Oscar |
  Owen | Pablo | Paula | Pedro | Petra | Priya | Rafael | Rajiv | Rana | Rosa | Ruth | Samir | Sandra | Sara | Selma |
  Simon | Sofia | Stefan | Sunil | Susan | Tariq | Tessa | Theo | Tomas | Uma | Vera | Victor | Vikram | Walter |
  Wanda | Wei | Yara | Yusuf | Zara | Zeynep
last_name: Abbott | Acheampong | Adler | Aguilar | Ahmadi | Akhtar | Alvarez | Amadi | Andersen | Antonov | Aoki |
  Arslan | Asante | Baker | Banerjee | Barros | Becker | Bello | Bennett | Berg | Bianchi | Bishop | Blanco |
  Boateng | Bondarenko | Bose | Brandt | Brennan | Cabrera | Calder | Campos | Carlsen | Castillo | Chandra | Chen |
  Clarke | Contreras | Costa | Cruz | Dahl | Danso | Das | Delgado | Desai | Diaz | Dogan | Duarte | Dubois | Dunn |
  Eriksen | Escobar | Evans | Farouk | Fernandez | Fischer | Fleming | Fonseca | Foster | Fuchs | Galvez | Garcia |
  Gill | Gomez | Grant | Gupta | Gustafsson | Haddad | Hale | Hamid | Hansen | Hartley | Hassan | Hayashi | Herrera |
  Hoffman | Holm | Horvat | Hughes | Ibarra | Ikeda | Iqbal | Ito | Ivanov | Jansen | Jimenez | Joshi | Kaplan |
  Kapoor | Karlsson | Kaya | Keller | Khalil | Kim | Klein | Kovac | Krause | Kuhn | Kumar | Lam | Larsen | Lee |
  Lindqvist | Lopez | Lund | Maas | Machado | Malhotra | Marin | Marsh | Mbeki | Medina | Mehta | Mendes | Meyer |
  Mills | Molina | Moreno | Morgan | Mori | Moss | Nair | Nakamura | Navarro | Nguyen | Nilsson | Nkosi | Novak |
  Nunez | Obi | Okafor | Olsen | Omondi | Ortega | Osei | Ozturk | Pacheco | Park | Patel | Pereira | Petrov |
  Quispe | Rahman | Ramos | Rao | Reyes | Richter | Rivera | Rojas | Romero | Rossi | Saito | Salazar | Santos |
  Sato | Schmidt | Sharma | Silva | Singh | Soto | Stein | Suarez | Svensson | Takeda | Tan | Thapa | Torres | Tran |
  Turner | Vargas | Vega | Verma | Vogel | Walsh | Weber | Wong | Yilmaz | Zhang | Ziegler
title: Analyst | Senior Analyst | Coordinator | Team Lead | Manager | Associate | Planner | Specialist | Director |
  Engineer | Senior Engineer | Advisor | Administrator | Program Manager | Assistant Manager | Controller |
  Consultant | Officer
site: Rotterdam | Leeds | Tampa | Gdansk | Porto | Calgary | Nagoya | Bilbao | Lagos | Pune | Trieste | Bremen |
  Denver | Cork | Malmo | Izmir | Accra | Quito | Perth | Lyon | Memphis | Tallinn | Mombasa | Osaka
project_first: Copper | Blue | Silver | Winter | Quiet | Granite | Amber | Harbor | River | Cedar | Golden |
  Northern | Hidden | Crimson | Maple | Summer | Iron | Paper | Morning | Velvet | Lunar | Coral | Desert | Glass |
  Prairie | Royal | Salt | Scarlet | Stone | Swift | Timber | Violet | Wild | Willow | Arctic | Bronze | Canyon |
  Cobalt | Distant | Ember
project_second: Lantern | Heron | Bridge | Orchard | Compass | Falcon | Meadow | Anchor | Beacon | Cove |
  Crane | Delta | Drum | Feather | Field | Forge | Gate | Horizon | Island | Kite | Ladder | Lark | Ledger | Loom |
  Mill | Mirror | Otter | Passage | Pine | Quarry | Reef | Saddle | Signal | Sparrow | Station | Summit | Thistle |
  Tower | Valley | Wharf
client_first: Halvorsen | Brightwater | Castell | Dunmore | Eastlake | Fairholm | Glenrock | Hawthorne | Juniper |
  Kestrel | Lakemont | Merrow | Norwood | Pellier | Quayside | Redfern | Sandoval | Thornbury | Vantor | Westbrook |
  Yarrow | Zellner | Ashgrove | Belmonte | Corvin | Drayton | Fenwick | Larkspur
client_second: Foods | Labs | Marine | Textiles | Energy | Motors | Paper | Retail | Systems | Steel | Farms |
  Pharma | Media | Glass | Airways | Optics | Chemicals | Outdoor | Furniture | Partners
month: January | February | March | April | May | June | July | August | September | October | November | December
weekday: Monday | Tuesday | Wednesday | Thursday | Friday
number: two | three | four | five | six | seven | eight | nine | ten | eleven | twelve
""")
# Numbers come from stocks too, as people write them.
STOCKS |= {
    "letter": tuple("ABCD"),
    "floor": tuple(str(n) for n in range(1, 10)),
    "id": tuple(str(n) for n in range(2, 25)),
    "percent": tuple(str(n) for n in range(2, 39)),
    "thousands": tuple(str(n) for n in range(2, 96)),
    "num_days": tuple(str(5 * n) for n in range(2, 19)),
    "big": tuple(f"{10 * n:,}" for n in range(12, 981)),
    "amount": tuple(f"{n * 10**power:,}" for n in range(11, 100) for power in (1, 2, 3)),
    "clock_24": tuple(f"{hour}:{minute:02d}" for hour in range(8, 18) for minute in (0, 15, 30, 45)),
    "clock_am": tuple(f"{hour}:{minute:02d}" for hour in (8, 9, 10, 11) for minute in (0, 15, 30, 45)),
    "clock_pm": tuple(f"{hour}:{minute:02d}" for hour in (12, 1, 2, 3, 4, 5) for minute in (0, 15, 30, 45)),
}
STOCKS["project"] = tuple(f"{a} {b}" for a in STOCKS["project_first"] for b in STOCKS["project_second"])
STOCKS["client"] = tuple(f"{a} {b}" for a in STOCKS["client_first"] for b in STOCKS["client_second"])

# Long form, short form: a writer's own rate decides between them.
CONTRACTIONS: Tables = _tables("""
I_will: I will | I'll
I_am: I am | I'm
I_have: I have | I've
I_would: I would | I'd
we_will: we will | we'll
we_are: we are | we're
do_not: do not | don't
does_not: does not | doesn't
did_not: did not | didn't
cannot: cannot | can't
is_not: is not | isn't
it_is: it is | it's
that_is: that is | that's
""")

# What every topic shares. A frame around a {step}, {fact} or {problem} names no {colleague}, {client} or {project},
# since those may do so.
PHRASES: dict[str, tuple[str, ...]] = _tables("""
hello: Hi {to}, | Hello {to}, | Dear {to}, | {to}, | Hey {to}, | Good morning {to}, | Good afternoon {to}, |
  Hi {to} and {colleague}, | {to} - | Hi {to} -
opening: thanks for {doing} the {thing} {past} | thank you for the {thing} you sent {past} |
  I went through the {thing} {past}, and {finding} | {person} and I {did} the {thing} for {project} {past} |
  a quick note on the {thing}: {fact} | here is where the {thing} stands: {problem} |
  I {did} the {thing} for {project} {past} | we met with {client} {past} to go over the {thing} |
  {person} asked me to write to you about {matter} | after our call {past} I {did} the {thing} again |
  {I_am} writing about {matter} and the {thing} for {project} |
  sorry for the late answer about the {thing}; {excuse} |
  you asked {past} about {matter}, so here is what {person} found | there is news on the {thing}: {fact} |
  the {thing} for {client} came back {past} with {num} comments | {client} wrote {past} about {matter} |
  I have heard nothing about the {thing} since {day_past} | here is the {thing} for {project}, as promised {past} |
  can we talk {on} about the {thing} for {project}? | do you have time {on} to go over the {thing} with {person}? |
  {I_am} back from {site} and have {did} the {thing} | it was good to talk {past} about {matter} |
  one more point on the {thing} after the meeting {past}: {problem} | I spoke with {person} {past} about {matter} |
  the meeting about the {thing} {past} ran long, but {fact} | {I_have} attached the {thing} for {project}; {finding} |
  we have a problem with the {thing} again: {problem} | before I {do} the {thing} {on}, I need to ask about {matter}
finding: it looks fine apart from {matter} | I found {num} open points | I left {num} comments for {team} |
  I have {num} questions about {matter} | the main gap is {matter} | I agree with {person} on {matter} |
  most of it is in good shape | page {id} needs another look | {person} had already changed {num} lines
excuse: I was in {site} until {day_past} | {person} needed me for {project} | we had visitors from {client} |
  I had to wait for {team} | the week was full of {project} | I was out sick {past}
statement: {fact} | {fact}{tail} | {problem} | {problem}{tail} | {person} says that {fact} |
  {person} told me {past} that {fact} | {team} {confirms} that {fact} | {team} {confirms} that {problem} |
  {I_will} {step} {on} | {I_will} {step} {by}, then I can {do} the {other} | {I_have} asked {person} to {step} {by} |
  {person} offered to {step} {on} | {person} and I want to {step} {on} |
  {we_will} {step} as soon as the {thing} is {did} | the plan is to {step} {on} and to {do} the {other} after that |
  we agreed {past} to {step} | we could {step}, but {problem} | it would help to {step} before we {do} the {other} |
  {I_would} rather {step} than lose {num} more days | {I_would} suggest that we {step} {on} |
  I {did} the {other} {past}, and {finding} | I also {did} the {other} for {client} {past} |
  {person} {did} the {other} {past} and left {num} comments |
  {person} has {did} the {thing}, so {we_are} waiting for {team} now |
  the {thing} {is_not} final yet because {problem} | the {thing} is on the agenda for {day} at {time} in {room} |
  the latest {thing} is in the {project} folder, {num} pages in all | there is {an_other} for {client} in my inbox |
  {client} wants to see the {thing} before {day} | {client} called {past} about {matter} |
  there are still {num} open questions about {matter} | I {do_not} have the {other} for {project} yet |
  I {did_not} get to the {other} {past}, but {I_will} {do} it {on} |
  {I_have} spent {num} hours on {matter} since {day_past} | I set aside {num} hours on {day} for the {other} |
  {project} is {num} days {ahead} schedule | the next review of {project} is {on} in {room} |
  {colleague} takes over {project} from {day} | nobody from {team} has looked at {matter} yet |
  the numbers for {project} look {looks} to me | I can {do} the {other} while you {step} |
  I put the {other} on your desk with {num} notes | I sent the {other} to {client} {past} |
  {we_are} meeting {client} {on} to go over the {thing} |
  {I_am} in {site} until {day} and can {do} the {thing} there | {person} will cover {project} while I am in {site} |
  {person} raised {matter} again {past} | {it_is} mostly about {matter} and the {other}
remark: the reason is that {problem} | the good news is that {fact} | the main issue is that {problem} |
  my view is that we should {step} {by} | for {project} the deadline is still {day} |
  if {person} agrees, we can {step} {by} | if that {does_not} work, {person} can {step} {on} |
  unless {person} objects, {I_will} {step} {on} | once {person} is back, we should {do} the {other} for {client} |
  until {day} the {other} stays as it is for {project} | your point about {matter} is fair, but {fact} |
  as for {matter}, {fact} | {that_is} why I {did} the {other} {past} | the short version is that {fact} |
  what worries me is that {problem} | one thing I would like to change is {matter} for {project} |
  since {problem}, {we_will} have to {step} | while {person} is in {site}, I can {do} the {other} |
  in that case {person} and I will {step} {on} | whatever {client} decides, the {thing} has to be {did} {by}
tail: {pause} so {I_will} {step} {on} | {pause} which is why we need to {step} | {pause} and {person} is aware of it |
  {pause} though {person} sees it differently | {pause} so the {other} has to wait until {day} |
  {pause} which leaves us {num} days | {pause} so expect a call from {person} {by} |
  {pause} and {person} will {step} {on} | {pause} and that changes the {other} | , according to {team} |
  , if {person} is right | {pause} and nobody in {site} knows why | {pause} which fits what {person} told us {past} |
  {pause} so please {do} the {other} first
ask: can you {step} {by}? | could you {do} the {other} {by}? | would you mind {doing} the {thing} before {day}? |
  please {step} {by} | please {do} the {other} and send it to {person} {by} |
  please let {person} know whether {team} can {step} | please tell {person} that {fact} |
  who is going to {step} {on}? | who {did} the {other} {past}? | do you know why {problem}? |
  do you know if {person} plans to {step}? | is it true that {fact}? | is {day} still fine for the {thing}? |
  what should we tell {client} about {matter}? | when do you expect to {do} the {other} for {project}? |
  have you heard from {client} about {matter}? | does {time} on {day} suit you for the {thing}? |
  should I {step}, or is {person} on it? | are you able to {step} {on}? |
  where can I find the {other} for {project}? | may I send the {thing} to {client} {on}? |
  could {person} join us in {room} at {time} to go over the {thing}? |
  let us {do} the {thing} together {on} in {room} | I need your answer on {matter} {by} |
  I need the {other} from you {by} | please check whether {problem} | how many hours would it take to {step}? |
  what did {client} say about {matter} {past}? | please remind me {on} to {step}
closing: let me know if {day} at {time} works for you | let me know what you think about {matter} |
  let me know whether {person} can {step} | call me {on} if anything about {matter} is unclear |
  I am in {site} on {day}, so call me after {time} | see you {on} in {room} | thanks for your help with {matter} |
  thanks in advance for {doing} the {other} | thanks again for the time you put into {project} |
  {I_will} keep you posted on {project} | I look forward to hearing from {team} {by} |
  I hope that helps with the {thing} | {I_will} be in touch {on} about {matter} |
  if you have questions about {matter}, ask {person} | any comments on the {thing} {by} would be welcome |
  please copy {person} on your answer about {matter} | there will be more {on}, once {person} has {did} the {thing} |
  {I_am} happy to explain {matter} {on} | give my best to {colleague} in {site} | good luck with the {thing} {on} |
  have a good trip to {site} and give my best to {colleague} | say hello to {person} and the others in {site} |
  sorry again for the delay with the {thing} | {I_would} be glad to have your view on {matter} {by} |
  you can reach me in {site} until {day} | that is all from me on {project} for {now} |
  {I_will} call {person} {on} and report back | tell {person} to call me about {matter}
aside: to be honest | as far as I can tell | for what it is worth | on a related note | as discussed {past} | in short |
  just so you know | by the way | as you know | to be fair | if I remember correctly | strictly between us |
  to my surprise | to be clear | in any case | on top of that | if you ask me | unless I am mistaken | sad to say |
  speaking of {project} | much to the relief of {team} | before I forget | as it happens | as it turns out | in fact |
  frankly | luckily | unfortunately | oddly enough | as {person} will tell you | good to know | in other words |
  for the record | if it helps | in all fairness | as I said {past}
past: yesterday | this morning | last week | earlier this week | on {weekday} | on {date_past} | the other day |
  late on {weekday} | over lunch on {weekday} | two days ago
day_past: {weekday} | {date_past}
day: {weekday} | {date_next} | {weekday} next week
on: on {weekday} | on {date_next} | tomorrow | tomorrow afternoon | next week | later today | on {weekday} at {time} |
  first thing on {weekday} | early next week | after lunch on {weekday}
by: by {weekday} | by {date_next} | before {date_next} | by noon on {weekday} | by the end of the week |
  by the end of {month_next} | by {time} tomorrow | before {weekday} next week | by {weekday} evening
room: room {floor}{letter} | meeting room {id} | the small room on floor {floor} | my office in {site} |
  the canteen on floor {floor} | the {site} room
confirms: has confirmed | reports | tells me | found out {past} | warned me {past} | assumes | wrote {past}
ahead: ahead of | behind
looks: right | low | high | optimistic | odd | solid | better than {past_month} | too round | plausible
past_month: those from {month} | the ones in the {other}
now: today | now | this week | the moment | this month | the time being
postscript: PS: {statement} | PS - {statement} | One more thing: {statement} | On a different note: {statement}
pct: {percent}% | {percent} percent | {percent}.5% | about {percent} percent | roughly {percent}%
money: ${amount} | {amount} dollars | USD {amount} | ${thousands}k
time: {clock_24} | {clock_24} | {clock_24} | {clock_am} am | {clock_pm} pm
date: {month_name} {dom} | {dom} {month_name} | the {ordinal} | {month_short} {dom}
goodbye: Thanks | Thank you | Best | Best regards | Kind regards | Regards | Cheers | Many thanks | All the best |
  Warm regards | With thanks | Talk soon | Best wishes | Take care | Thanks again | Sincerely | Yours | Greetings
me: {first} | {first} | {first} {last} | {first} {l}. | {f}{l}
step: talk to {colleague} about {matter} | send the {other} to {client} | set up a call with {client} |
  check the {thing} with {colleague} | raise {matter} with {client} | show {colleague} the {other} |
  file the {other} under {project} | ask {client} about {matter} | write a note on {matter} for {team}
""")
PHRASES["pause"] = (",", ",", " -")
PHRASES["card"] = (
    "{first} {last}\n{title}, {department} | ext {extension}",
    "{first} {last} | {title}\nNorthgate {home}, ext {extension}",
    "{first} {last}, {department}\nNorthgate {home} - phone {extension}",
    "{first} {last}\n{title}, Northgate {home}\n{address}",
)

_TOPICS = """
team: finance
thing: budget | quarterly forecast | expense report | cost estimate | spending plan | variance report |
  accrual schedule | capital request
verb: review reviewed reviewing | approve approved approving | revise revised revising |
  reconcile reconciled reconciling
matter: contractor spending | the accrual cutoff | the currency adjustment | overtime costs |
  the carry-over from {month}
fact: spending on contractors came in {pct} above plan for {month} |
  we have {money} left for {project} until the end of the quarter |
  the controller wants every accrual above {money} explained |
  the {site} cost center is {pct} under plan for the year |
  moving {money} out of travel would close the gap for {project} |
  the board has released only {money} of the reserve so far
problem: {num} of the line items sit in the wrong cost center | the totals are off by {money} |
  the {month} figures {do_not} tie to the ledger | nobody has signed off on the {money} for {project} |
  the exchange rate in the {site} tab is {num} months old
step: rerun the numbers with the {month} actuals | move {money} to the {site} cost center |
  ask the controller about the reserve for {project} | split the overhead between {site} and the head office |
  add a line for {money} of contingency

team: recruiting
thing: job posting | interview plan | offer letter | shortlist | hiring plan | scorecard | reference check |
  onboarding plan
verb: review reviewed reviewing | update updated updating | finish finished finishing | discuss discussed discussing
matter: the salary band | the notice period | the panel | relocation costs | the internship program in {site}
fact: we have had {num} applications for the {site} role since {day_past} |
  the candidate from {site} can start in {month} | {num} of the interviews for {project} are already booked |
  the salary range now tops out at {money} | the agency charges {pct} of the first-year salary |
  the panel preferred the second candidate by {num} points
problem: {num} candidates have dropped out since {day_past} | the panel has no free slot before {day} |
  the posting for {site} still shows the old title | we have no feedback from {num} of the interviewers |
  the offer is {money} below what the candidate asked for
step: call the candidate in {site} about the offer | book a room for {num} interviews |
  post the {site} role on the careers page | collect the scorecards from the {project} panel |
  raise the offer by {money}

team: logistics
thing: delivery schedule | packing list | route plan | customs form | freight quote | loading plan | stock count |
  carrier contract
verb: check checked checking | correct corrected correcting | confirm confirmed confirming | update updated updating
matter: the customs hold in {site} | the pallet shortage | fuel surcharges | the night shift | damaged cartons
fact: {big} cartons left {site} on {day_past} | the truck for {client} reaches {site} around {time} |
  fuel surcharges went up {pct} in {month} | the warehouse in {site} is {pct} full |
  the carrier can take {num} more pallets on {day} | a container to {site} now costs {money}
problem: {num} pallets for {client} are stuck at customs in {site} | the carrier missed the pickup on {day_past} |
  the stock count in {site} is short by {big} units | the driver had no paperwork for {num} of the crates |
  the dock in {site} is closed until {day}
step: send the {num} missing pallets by road | ask the carrier for a later pickup in {site} |
  recount the {big} units in bay {id} | file the claim for {money} with the insurer |
  move the {client} load to the night truck

team: the network team
thing: firewall rule | backup job | migration plan | access request | maintenance window | patch list | router swap |
  disk report
verb: review reviewed reviewing | check checked checking | document documented documenting |
  approve approved approving
matter: remote access | password resets | the mail outage | storage quotas | the old switches in {site}
fact: the backup in {site} took {num} hours on {day_past} | {big} mailboxes have moved to the new server |
  the line to {site} dropped {num} times since {day_past} | storage for {project} is {pct} full |
  the new switches cost {money} each | the patch reached {pct} of the laptops by {day_past}
problem: {num} servers in {site} missed the {month} patch | the backup for {project} failed at {time} |
  {num} people still cannot reach the shared drive | the certificate for the {site} gateway expires on {day} |
  the monitoring page shows {big} stale alerts
step: restart the gateway in {site} | give {colleague} access to the {project} folder |
  move {big} mailboxes over the weekend | replace the {num} oldest switches in {site} |
  test the restore on {num} files from {month}

team: legal
thing: contract draft | supplier agreement | lease | license | confidentiality agreement | signature page |
  claim letter | amendment
verb: review reviewed reviewing | redline redlined redlining | sign signed signing | amend amended amending
matter: the liability cap | payment terms | the governing law | early termination | the renewal date | data protection
fact: {client} accepts a liability cap of {money} | the notice period in clause {id} is {num_days} days |
  the current term ends on {day} | outside counsel quoted {money} for the {project} review |
  {client} wants a discount of {pct} for early payment | clause {id} was copied from the {site} lease
problem: clause {id} contradicts the order of precedence | {client} struck out {num} of our changes |
  the {site} entity is named wrongly on page {id} | nobody has countersigned since {day_past} |
  the cap of {money} is missing from schedule {id}
step: send clean copies to {client} | ask {client} to accept clause {id} as it stands |
  get the signature from the {site} director | lower the cap to {money} | add the {project} work to schedule {id}

team: sales
thing: proposal | price list | account plan | pipeline report | renewal offer | discount request | call summary |
  sales deck
verb: present presented presenting | update updated updating | rework reworked reworking |
  discuss discussed discussing
matter: volume discounts | the renewal with {client} | the trade fair in {site} | commission splits | late payers
fact: {client} placed an order for {big} units on {day_past} | the {site} region closed {money} in {month} |
  {client} expects a discount of {pct} | our win rate went up by {pct} in {month} |
  {num} new leads came out of the fair in {site} | the renewal with {client} is worth {money} a year
problem: {client} has a cheaper quote by {pct} | {num} accounts in {site} have no owner |
  the order for {big} units is still not in the system | {client} has not paid the {money} from {month} |
  the demo for {client} clashes with the review on {day}
step: call {client} about the {month} order | offer {client} a discount of {pct} |
  bring {num} samples to the meeting in {site} | hand the {site} accounts to {colleague} |
  log the {num} open leads in {site}

team: the release team
thing: release plan | code review | build script | design note | feature list | sprint board | test branch |
  change log
verb: simplify simplified simplifying | update updated updating | review reviewed reviewing | share shared sharing
matter: the login screen | response times | the search index | error messages | the payment module | version {id}
fact: version {id} of {project} went live on {day_past} | the page now loads {pct} faster in {site} |
  {num} of the open tickets are fixed in the branch | the nightly build finishes at {time} |
  {project} handled {big} requests an hour on {day_past} | the freeze for {project} starts on {day}
problem: the build broke {num} times since {day_past} | {num} tests fail on the {project} branch |
  the search index is missing {big} entries | the import for {client} times out after {num} minutes |
  response times got {pct} worse with version {id}
step: roll {project} back to version {id} | fix the {num} failing tests on that branch |
  delay the freeze for {project} by {num} days | load {big} sample records into the test system |
  split the ticket into {num} smaller ones

team: quality
thing: test report | defect list | inspection plan | sample batch | calibration log | complaint file | checklist |
  control chart
verb: review reviewed reviewing | sign signed signing | update updated updating | file filed filing
matter: surface scratches | the torque limits | batch {id} | supplier defects | the humidity readings
fact: batch {id} passed with a defect rate of {pct} | the line in {site} ran {big} units without a reject |
  the new gauge reads {pct} higher than the old one | {client} returned {num} parts on {day_past} |
  scrap in {site} cost us {money} in {month} | the auditor will be in {site} on {day}
problem: {num} parts from {site} failed the pressure test | the gauge in {site} is {num} weeks past calibration |
  {client} found scratches on {num} panels | the humidity log stops at {time} on {day_past} |
  we cannot trace {big} units of batch {id}
step: hold the {big} units of batch {id} | repeat the pressure test on {num} samples |
  send the {num} worst parts to {site} | tighten the limit for batch {id} |
  invite {client} to the inspection in {site}

team: facilities
thing: floor plan | seating chart | cleaning contract | parking list | repair order | moving plan | badge request |
  lease summary
verb: update updated updating | confirm confirmed confirming | print printed printing | check checked checking
matter: the lift in {site} | the heating | the kitchen on floor {floor} | bicycle racks | meeting room screens
fact: {num} desks on floor {floor} will be free from {month} | the landlord in {site} pays {pct} of the repair |
  the movers quoted {money} for floor {floor} | power will be off in {site} from {time} on {day} |
  the new chairs for {site} cost {money} | {num} parking spaces in {site} are reserved for visitors
problem: the heating on floor {floor} has been out since {day_past} |
  {num} badges {do_not} open the side door in {site} | the roof in {site} leaks above desk {id} |
  the movers {cannot} come before {day} | the screen in {room} has been dark since {day_past}
step: move {num} desks to floor {floor} | order {num} chairs for {room} | ask the landlord in {site} for {money} |
  lock the side entrance in {site} | label the {num} crates for the {site} move

team: the travel desk
thing: itinerary | hotel booking | visa letter | travel request | car rental | agenda | meeting schedule |
  visitor list
verb: check checked checking | confirm confirmed confirming | change changed changing | forward forwarded forwarding
matter: train tickets | the hotel in {site} | daily allowances | the visa rules | the trip to {site}
fact: the flight to {site} leaves at {time} on {day} | the hotel in {site} holds {num} rooms for us until {day} |
  the fare to {site} went up by {money} | the train takes {num} hours longer than the flight |
  the allowance in {site} is {money} a day | {client} will send a car at {time}
problem: the hotel in {site} lost {num} of our bookings | my connection in {site} is only {num} minutes |
  the visa will not arrive before {day} | the fare is {money} over the limit |
  the {time} train to {site} was cancelled
step: book {num} rooms in {site} | take the early train from {site} | extend the visit to {site} by {num} days |
  send the passport copies to {client} | claim the {money} for the {site} trip

team: training
thing: course outline | workshop plan | slide set | handout | exercise sheet | attendance list | course survey |
  video script
verb: revise revised revising | print printed printing | share shared sharing | translate translated translating
matter: the safety course | certificates | the mentoring program | new starters in {site} | the {month} workshop
fact: {num} people from {site} have signed up for {day} | {pct} of the group passed the test on {day_past} |
  the trainer from {client} costs {money} a day | the workshop in {site} starts at {time} |
  the survey came back with {num} answers | the video part now runs {num} minutes
problem: {num} people never got the link for {day} | the room in {site} seats only {num} |
  {pct} of the certificates run out in {month} | the slides still show {project} in the old layout |
  the trainer {cannot} do {day}
step: open {num} more seats in {site} | run the course twice in {site} | cut the theory part to {num} minutes |
  print {num} copies for the {site} group | remind the {num} people who have not answered

team: marketing
thing: campaign plan | press release | brochure | newsletter | landing page | event brief | product flyer |
  customer story
verb: proofread proofread proofreading | update updated updating | publish published publishing | edit edited editing
matter: the new logo | the booth in {site} | click rates | the holiday campaign | quotes from {client}
fact: the newsletter went to {big} readers on {day_past} | {pct} of the readers clicked through to {project} |
  the booth in {site} costs {money} | {client} agreed to be quoted by name |
  {big} people visited the {project} page in {month} | the printer needs the files by {time} on {day}
problem: the logo on page {id} is the old one | {client} has not approved the quote |
  the printer wants {money} more for the rush | {num} links on the {project} page are dead |
  sign-ups fell by {pct} in {month}
step: print {big} copies for {site} | delay the launch of {project} by {num} weeks | ask {client} for a new photo |
  shorten the text on page {id} | spend another {money} on the {site} campaign

team: purchasing
thing: purchase order | supplier quote | invoice | delivery note | tender | vendor list | credit note |
  price comparison
verb: send sent sending | approve approved approving | file filed filing | check checked checking
matter: lead times | the minimum order | steel prices | the second supplier | office supplies for {site}
fact: {client} can deliver {big} units by {day} | the lead time from {site} is now {num} weeks |
  the quote from {client} is {pct} lower than last year | we paid {client} {money} on {day_past} |
  the minimum order went up to {big} units | {num} suppliers answered the tender for {project}
problem: {client} invoiced {money} twice | {big} units arrived in {site} without a delivery note |
  the price for {project} went up by {pct} overnight | {num} invoices from {month} are still open |
  the part number on line {id} {does_not} exist
step: order {big} units from {client} | dispute the {money} with {client} | get {num} more quotes for {project} |
  delay the delivery in {site} by {num} days | pay the {num} oldest invoices

team: safety
thing: risk assessment | incident report | evacuation plan | inspection sheet | permit | first aid list |
  drill report | chemical log
verb: file filed filing | review reviewed reviewing | post posted posting | complete completed completing
matter: the fire doors in {site} | forklift traffic | hard hats | the near miss on {day_past} | the drill
fact: the drill in {site} took {num} minutes | {site} has had {num} months without an injury |
  the inspector comes to {site} at {time} on {day} | {pct} of the staff in {site} hold a first aid certificate |
  the new guards for line {id} cost {money} | the forklift lane in {site} reopens on {day}
problem: {num} extinguishers in {site} are out of date | the fire door on floor {floor} {does_not} close |
  the permit for {project} ran out on {day_past} | a forklift hit rack {id} at {time} |
  {num} people skipped the drill on {day_past}
step: close lane {id} in {site} | replace the {num} extinguishers in {site} | repeat the drill in {site} |
  interview the {num} witnesses | renew the permit for {project}

team: payroll
thing: timesheet | vacation plan | pay slip | benefits form | overtime report | shift plan | leave request |
  bonus table
verb: check checked checking | submit submitted submitting | correct corrected correcting | approve approved approving
matter: parental leave | sick days | the pension change | the bonus for {month} | shift swaps in {site}
fact: the cutoff for {month} is {time} on {day} | {num} people in {site} have days left from {month} |
  the health plan goes up by {pct} in {month} | the bonus pool for {site} is {money} |
  overtime in {site} fell to {big} hours | {colleague} is on leave until {day}
problem: {num} timesheets from {site} are missing | my pay slip for {month} is short by {money} |
  the system booked {num} vacation days twice | the overtime from {day_past} was never paid |
  {pct} of the forms for {site} have no signature
step: pay the {money} with the {month} run | move {num} days of leave to {month} |
  swap the late shift with {colleague} | send the forms for {site} again | ask {site} for the {num} missing signatures

team: the data team
thing: dashboard | data extract | monthly report | survey summary | customer table | query | chart | data dictionary
verb: refresh refreshed refreshing | share shared sharing | rebuild rebuilt rebuilding | check checked checking
matter: duplicate records | the {month} churn | the access log | missing postcodes |
  the definition of active customers
fact: the table for {site} now holds {big} rows | {pct} of the {client} records had no postcode |
  churn in {site} went down to {pct} | the load for {project} finishes at {time} |
  the license for the tool costs {money} | {num} reports were last opened in {month}
problem: {big} rows were loaded twice on {day_past} | the {month} column mixes {num} currencies |
  the chart for {site} starts in the wrong month | the feed from {client} stopped at {time} |
  {pct} of the {project} records have no owner
step: reload the {month} data for {site} | delete the {big} duplicate rows | give {client} a copy without names |
  archive the {num} oldest reports | add {site} to the {project} dashboard

team: customer service
thing: complaint | refund request | service ticket | callback request | return request | warranty claim | chat log |
  escalation
verb: review reviewed reviewing | close closed closing | forward forwarded forwarding | file filed filing
matter: waiting times | the refund rules | the {site} hotline | broken parcels | angry calls
fact: we took {big} calls on {day_past} | the average wait in {site} is {num} minutes |
  {pct} of the refunds go through within {num} days | {client} is happy with the answer from {day_past} |
  the hotline in {site} opens at {time} from {month} | refunds for {project} came to {money}
problem: {client} has been waiting for {num} days | {big} mails are still unanswered |
  the refund of {money} went to the wrong account | {num} customers got the same parcel twice |
  the {site} line was down from {time} on {day_past}
step: refund {money} to {client} | call back the {num} customers from {site} | put {num} more people on the hotline |
  send {client} a new part from {site} | rewrite the answer for {project}
"""
TOPICS: tuple[Tables, ...] = tuple(_topic(text, PHRASES) for text in _TOPICS.strip().split("\n\n"))
